"""Servers for dev, demo and tests, real ones from packages (DESIGN 19).

`DevStack` starts what the environment does not give. The launchers behind it start one server each, and
can kill and restart it: for tests that need a server of their own.
"""

from __future__ import annotations

from session_custody.devstack.address import KINDS, Address, Kind, Origin
from session_custody.devstack.errors import (
    DevStackError,
    ExtraMissing,
    JarRefused,
    JarsUnavailable,
    ServerNotReady,
)
from session_custody.devstack.kafka import KafkaConfig, KafkaServer
from session_custody.devstack.postgres import Databases, PostgresConfig, PostgresServer
from session_custody.devstack.stack import Addresses, DevStack, given_address
from session_custody.devstack.valkey import ValkeyConfig, ValkeyServer

__all__ = [
    "KINDS",
    "Address",
    "Addresses",
    "Databases",
    "DevStack",
    "DevStackError",
    "ExtraMissing",
    "JarRefused",
    "JarsUnavailable",
    "KafkaConfig",
    "KafkaServer",
    "Kind",
    "Origin",
    "PostgresConfig",
    "PostgresServer",
    "ServerNotReady",
    "ValkeyConfig",
    "ValkeyServer",
    "given_address",
]
