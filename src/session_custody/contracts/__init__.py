"""Contracts: files to immutable rows, and back to values (DESIGN 10, API 1). A sibling of the stations."""

from session_custody.contracts.cache import StoreContracts
from session_custody.contracts.publish import Finding, check, publish

__all__ = ["Finding", "StoreContracts", "check", "publish"]
