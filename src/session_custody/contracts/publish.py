"""Check contract files and publish them as immutable rows (DESIGN 10).

The body of a row is the document as its author wrote it, in canonical form, and the digest is over that: the
same file has the same digest under every version of custody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from session_custody.contracts.document import Document, path_of, read_document
from session_custody.contracts.parse import IDENTITY, kind_of, problems
from session_custody.core import canonical
from session_custody.core.errors import ContractInvalid
from session_custody.core.manifest import ContractKind

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
FILES_MAX: Final = 10_000

Identity = tuple[ContractKind, str, str]
"""(kind, name, version)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, for a person. `where` is `file:line`."""

    where: str
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.text}" if self.field else f"{self.where}: {self.text}"


class ContractRows(Protocol):
    """The one call of `ports.RunStore` that publishing needs."""

    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool: ...


def check(paths: Iterable[Path]) -> list[Finding]:
    """Everything that is wrong in these files and folders. Files that are no contract are not looked into."""
    return _gather(paths)[1]


async def publish(store: ContractRows, path: Path) -> list[dict[str, Any]]:
    """Publish a file or every contract of a folder; nothing is published unless all of it is well-formed.

    Gives rows {kind, name, version, digest, new}. Raises ContractInvalid for the first finding, and
    ContractConflict where other content stands already under a version.
    """
    contracts, findings = _gather([path])
    for finding in findings:
        detail = f"{finding.field}: {finding.text}" if finding.field else finding.text
        raise ContractInvalid(finding.where, detail)
    if not contracts:
        raise ContractInvalid(str(path), "holds no contract")
    rows: list[dict[str, Any]] = []
    for (kind, name, version), document in contracts.items():
        body = canonical.canonical(document.value)
        digest = canonical.digest(document.value).hex()
        new = await store.publish_contract(kind, name, version, body.decode(), digest)
        rows.append({"kind": kind.value, "name": name, "version": version, "digest": digest, "new": new})
    return rows


def _gather(paths: Iterable[Path]) -> tuple[dict[Identity, Document], list[Finding]]:
    """Every contract once, and what is wrong."""
    contracts: dict[Identity, Document] = {}
    findings: list[Finding] = []
    for file in _files(paths):
        try:
            document = _read(file)
        except ContractInvalid as error:
            findings.append(Finding(error.where, "", error.detail))
            continue
        kind = kind_of(document.value)
        if kind is None:
            continue
        found = problems(document, kind)
        findings += [Finding(document.where(place), path_of(place), text) for place, text in found]
        if found:
            continue
        identity = _identity(document, kind)
        other = contracts.setdefault(identity, document)
        if other is not document:
            text = f"{identity[1]}@{identity[2]} stands in {other.name} too"
            findings.append(Finding(document.where(()), "", text))
    return contracts, findings


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Contract files by name order; hidden folders and files are not ours."""
    number = 0
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            hidden = path.is_dir() and any(part.startswith(".") for part in file.relative_to(path).parts)
            if hidden or (path.is_dir() and (file.suffix not in SUFFIXES or not file.is_file())):
                continue
            number += 1
            if number > FILES_MAX:
                raise ContractInvalid(str(path), f"holds more than {FILES_MAX} files")
            yield file


def _read(file: Path) -> Document:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ContractInvalid(str(file), f"cannot be read ({type(error).__name__})") from None
    except UnicodeDecodeError:
        raise ContractInvalid(str(file), "is not UTF-8") from None
    return read_document(text, str(file))


def _identity(document: Document, kind: ContractKind) -> Identity:
    name, version = IDENTITY[kind]
    assert isinstance(document.value, dict)
    return kind, str(document.value[name]), str(document.value[version])
