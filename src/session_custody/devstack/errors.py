"""What can go wrong while servers for dev, demo and tests are brought up (DESIGN 18, 19)."""

from __future__ import annotations

from session_custody.core.errors import CustodyError


class DevStackError(CustodyError):
    """A server could not be had. The sentence names the cause and the way out, never a password."""


class ExtraMissing(DevStackError):
    """A package of the extra `dev` is not installed (or has no wheel for this platform)."""

    def __init__(self, server: str, package: str, given_by: str) -> None:
        super().__init__(
            f"{server}: the package {package} is not installed. Install the extra `dev` "
            f"(pip install 'session-custody[dev]'), start a Docker engine, or give an address in {given_by}"
        )
        self.server = server
        self.package = package


class JarRefused(DevStackError):
    """A jar is not the one on our list. It never reaches a class path."""

    def __init__(self, jar: str, found: str, cure: str) -> None:
        super().__init__(f"{jar} is refused: {found}. {cure}")
        self.jar = jar


class JarsUnavailable(DevStackError):
    """The registry did not give a jar, and no finished folder holds it."""

    def __init__(self, jar: str, cause: str) -> None:
        super().__init__(
            f"{jar} could not be fetched ({cause}). The first start of Apache Kafka needs the network; "
            "else give an address in CUSTODY_KAFKA__BOOTSTRAP_SERVERS"
        )
        self.jar = jar


class ServerNotReady(DevStackError):
    """A server ended, or did not answer in time. Its log file is named."""

    def __init__(self, server: str, why: str, log_path: object) -> None:
        super().__init__(f"{server} {why}; its log: {log_path}")
        self.server = server
