"""The crash rig's runs: their starts, contracts, and the model's answers, the same in every world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from session_custody.client import RunStart, Subject
from session_custody.tools.draft import build

VERSION: Final = "1"
MANIFEST: Final = "crash"
TALK: Final = "talk"
LATER: Final = "published-later"
READS: Final = frozenset({"look", "deadly"})
APP: Final = "bank_tools"
APP_FOLDER: Final = Path(__file__).resolve().parent / "app"


@dataclass(frozen=True, slots=True)
class Part:
    """One run. `turns`: the model's proposals, each a list of (tool, what it is about)."""

    run_id: str
    turns: Sequence[Sequence[tuple[str, str]]]
    manifest: str | None = MANIFEST

    @property
    def tools(self) -> frozenset[str]:
        return frozenset(tool for turn in self.turns for tool, _ in turn)

    def start(self) -> RunStart:
        pinned = self.manifest is not None
        return RunStart(
            correlation_id=self.run_id,
            session_id=f"session-of-{self.run_id}",
            subject=Subject(id="u-1", tenant="bank-a"),
            route_id="crash",
            route_table_version="1",
            manifest_id=self.manifest,
            manifest_version=VERSION if pinned else None,
            policy_profile="crash" if pinned else None,
            policy_version="1" if pinned else None,
            model_profile="scripted",
            max_loop_steps=8 if self.turns else None,
            input={"about": self.run_id},
        )


def single(run_id: str, write: str) -> Part:
    return Part(run_id, [[("look", run_id)], [(write, run_id)]])


def _many(run_id: str) -> Part:
    """Several calls in one proposal: reads and writes of every kind that ends by itself, mixed."""
    calls = [("look", run_id), ("note", f"{run_id}-a"), ("file", f"{run_id}-b"), ("look", f"{run_id}-c")]
    return Part(run_id, [[("look", run_id), ("look", f"{run_id}-d")], [*calls, ("safe_note", f"{run_id}-e")]])


PLAY: Final = (
    Part("bare", (), None),  # pattern 0 without a manifest
    Part("infer", (), TALK),  # pattern 0 with instructions
    single("key-1", "note"),
    single("key-2", "note"),
    single("safe", "safe_note"),
    single("ask-1", "file"),
    single("ask-2", "file"),
    single("once", "letter"),
    single("slow", "letter"),  # its answer comes too late: in doubt, also without a crash
    _many("many-1"),
    _many("many-2"),
    Part("parked", [[("look", "parked")], [("note", "parked")]], LATER),
)


def write_contracts(folder: Path) -> None:
    """What is published before the first start."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.yaml").write_text(_manifest(MANIFEST), encoding="utf-8")
    talk = {"manifest_id": TALK, "manifest_version": VERSION, "instructions": "Say something.", "tools": []}
    (folder / "talk.yaml").write_text(yaml.safe_dump(talk), encoding="utf-8")
    allowed = ["look", "note", "safe_note", "file", "letter", "deadly"]
    policy = {"policy_profile": "crash", "policy_version": "1", "engine": "allow-list", "allow": allowed}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy), encoding="utf-8")


def write_later(folder: Path) -> None:
    """What the parked run waits for."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "later.yaml").write_text(_manifest(LATER), encoding="utf-8")


def _manifest(name: str) -> str:
    return build(APP, name, VERSION)


def write_script(file: Path, parts: Sequence[Part]) -> None:
    """The model: it answers the same for the same turn, whenever and however often it is asked."""
    scripts = [{"when": {"run_id": part.run_id}, "turns": _turns(part)} for part in parts]
    file.write_text(yaml.safe_dump({"scripts": scripts}), encoding="utf-8")


def _turns(part: Part) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [
        {"say": "Next.", "calls": [{"tool": tool, "arguments": {"about": about}} for tool, about in turn]}
        for turn in part.turns
    ]
    return [*turns, {"answer": f"{part.run_id} is done."}]
