"""Addresses of servers. A password in one is never shown by repr()."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["kafka", "postgres", "valkey"]
Origin = Literal["given", "container", "packages"]

KINDS: Final[tuple[Kind, ...]] = ("kafka", "postgres", "valkey")
LOOPBACK: Final = "127.0.0.1"


def without_password(url: str) -> str:
    """The address with `***` for its password, also in the key=value form of a DSN."""
    hidden = re.sub(r"(?<=://)([^/@?#]*?):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", r"\1***", hidden)


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """Where one server listens. `url`: bootstrap servers, a DSN, or a redis:// URL; with its password."""

    host: str
    port: int
    url: str

    def __repr__(self) -> str:
        return f"Address({without_password(self.url)!r})"


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that the kernel says are free, all different.

    Another process can take one before the server does: launchers start again with others then.
    """
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in held:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
