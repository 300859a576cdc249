"""Fixtures for every test: real servers, one of each per session."""

from __future__ import annotations

pytest_plugins = ["tests.servers"]
