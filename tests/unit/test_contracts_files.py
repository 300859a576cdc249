"""Contract files: what is wrong is named by file, line and field; what is published stays (DESIGN 10)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from session_custody.contracts import check, publish
from session_custody.contracts.document import read_document
from session_custody.contracts.parse import parse_manifest
from session_custody.contracts.schema_file import FILES, schema_text
from session_custody.core import canonical
from session_custody.core.durations import seconds_of, text_of
from session_custody.core.errors import ContractConflict, ContractInvalid
from session_custody.core.manifest import ContractKind, Effect
from session_custody.core.pin import OnMaxLoopSteps
from session_custody.resources import examples_dir, schemas_dir

MANIFEST = """\
manifest_id: m
manifest_version: 2026.08.1
instructions: |
  Do it.
on_max_loop_steps: escalate
visible: [input, text]
questions: {answered_by: subject, deadline: 24h, on_deadline: deny}
limits: {tool_timeout: 10s, model_timeout: 2m, model_attempts: 5}
tools:
  - name: add_note
    effect: write
    idempotency: key
    timeout: 150ms
    endpoint: python:my_app.tools:add_note
    input:
      type: object
      required: [text]
      properties:
        text: {type: string}
      additionalProperties: false
    saves: {note_id: /id}
    policy_args: [text]
    visible: [/args/text, /result/id]
"""


class Rows:
    """The contract table: immutable by (kind, name, version)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[ContractKind, str, str], tuple[str, str]] = {}

    async def publish_contract(
        self, kind: ContractKind, name: str, version: str, body: str, digest: str
    ) -> bool:
        there = self.rows.setdefault((kind, name, version), (body, digest))
        if there[1] != digest:
            raise ContractConflict(kind.value, name, version)
        return there[0] is body


def write(folder: Path, text: str, name: str = "manifest.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_a_manifest_means_what_it_says() -> None:
    manifest = parse_manifest(read_document(MANIFEST, "m.yaml"))
    assert (manifest.manifest_id, manifest.manifest_version) == ("m", "2026.08.1")
    assert manifest.instructions == "Do it.\n"
    assert manifest.on_max_loop_steps is OnMaxLoopSteps.ESCALATE
    assert manifest.questions is not None
    assert manifest.questions.deadline_s == 86_400
    assert (manifest.limits.tool_timeout_s, manifest.limits.model_timeout_s) == (10, 120)
    (tool,) = manifest.tools
    assert (tool.effect, tool.timeout_s, tool.saves) == (Effect.WRITE, 0.15, {"note_id": "/id"})


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("timeout: 150ms", "timeout: 150", 13, "tools.0.timeout: is text; put it in quotes"),
        ("timeout: 150ms", "timeout: '150'", 13, "tools.0.timeout: is a duration"),
        ("timeout: 150ms", "timeout: 0s", 13, "tools.0.timeout: Input should be greater than 0"),
        ("timeout: 150ms", "timeuot: 150ms", 13, "tools.0.timeuot: there is no such field"),
        ("idempotency: key\n", "on_in_doubt: hold\n", 10, "tools.0: a write needs idempotency"),
        ("idempotency: key\n", "idempotency: none\n", 10, "tools.0: a write with idempotency: none needs"),
        ("effect: write", "effect: wirte", 11, "tools.0.effect: "),
        ("manifest_version: 2026.08.1", "manifest_version: 2026.08", 2, "manifest_version: is text; put it"),
        ("manifest_version: 2026.08.1\n", "", 1, "manifest_version: is missing"),
        ("python:my_app.tools:add_note", "my_app.tools", 14, "tools.0.endpoint: "),
        ("      type: object", "      type: objekt", 16, "tools.0.input.type: is no JSON Schema"),
        ("      type: object", "      type: string", 15, "tools.0.input: has type: object"),
        (
            "text: {type: string}",
            "text: {$ref: 'http://h/s'}",
            19,
            "tools.0.input.properties.text.$ref: a reference",
        ),
        ("note_id: /id", "note_id: id", 21, "tools.0.saves.note_id: "),
        ("policy_args: [text]", "policy_args: [txt]", 22, "tools.0.policy_args.0: names no argument"),
        ("/result/id", "/id", 23, "tools.0.visible.1: "),
        ("deadline: 24h", "deadline: soon", 7, "questions.deadline: is a duration"),
        ("model_attempts: 5", "model_attempts: 0", 8, "limits.model_attempts: "),
        ("visible: [input, text]", "visible: [input, result]", 6, "visible.1: "),
    ],
)
def test_a_finding_names_file_line_and_field(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    assert old in MANIFEST
    file = write(tmp_path, MANIFEST.replace(old, new, 1))
    findings = check([tmp_path])
    assert findings
    assert str(findings[0]).startswith(f"{file}:{line}: {said}")
    with pytest.raises(ContractInvalid) as caught:
        asyncio.run(publish(Rows(), tmp_path))
    assert str(caught.value) == str(findings[0])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("manifest_id: m\nmanifest_id: n\n", 2, "manifest_id: stands twice"),
        ("manifest_id: &a m\nmanifest_version: *a\n", 2, "aliases are not taken"),
        ("manifest_id: !!python/name:os.system m\n", 1, "tags are not taken"),
        ("manifest_id: m\n1: n\n", 2, "a key is no text"),
        ("manifest_id: m\nmanifest_version: m: n\n", 2, "mapping values are not allowed"),
        ("manifest_id: {\n", 2, "expected"),
    ],
)
def test_a_file_that_could_mean_two_things_is_refused(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    file = write(tmp_path, text)
    (finding,) = check([file])
    assert said in finding.text
    assert finding.where == f"{file}:{line}"


def test_the_words_of_old_yaml_are_just_words() -> None:
    document = read_document("a: on\nb: 2026-08-14\nc: 12:30\nd: no\ne: 0x10\nf: true\ng: 1.5\nh:\n", "f")
    words = {"a": "on", "b": "2026-08-14", "c": "12:30", "d": "no", "e": "0x10"}
    assert document.value == words | {"f": True, "g": 1.5, "h": None}


def test_a_nested_bomb_is_refused_by_its_depth(tmp_path: Path) -> None:
    file = write(tmp_path, "manifest_id: " + "[" * 5_000)
    assert check([file])


def test_the_same_file_has_the_same_digest_however_it_is_laid_out(tmp_path: Path) -> None:
    rows = Rows()
    (first,) = asyncio.run(publish(rows, write(tmp_path, MANIFEST)))
    assert first["new"] is True
    as_json = json.dumps(yaml.safe_load(MANIFEST), sort_keys=True, indent=1)
    (again,) = asyncio.run(publish(rows, write(tmp_path, as_json, "manifest.json")))
    assert (again["new"], again["digest"]) == (False, first["digest"])
    ((body, digest),) = rows.rows.values()
    assert canonical.digest(canonical.accept(body)).hex() == digest == first["digest"]


def test_other_content_under_a_published_version_is_refused(tmp_path: Path) -> None:
    rows = Rows()
    asyncio.run(publish(rows, write(tmp_path, MANIFEST)))
    with pytest.raises(ContractConflict):
        asyncio.run(publish(rows, write(tmp_path, MANIFEST.replace("Do it.", "Do it!"))))


def test_a_folder_is_published_whole_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, "a.yaml")
    write(tmp_path, "policy_profile: p\npolicy_version: '1'\nengine: opal\n", "z.yaml")
    rows = Rows()
    with pytest.raises(ContractInvalid, match="engine"):
        asyncio.run(publish(rows, tmp_path))
    assert rows.rows == {}


def test_a_version_that_stands_in_two_files_is_a_finding(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, "a.yaml")
    write(tmp_path, MANIFEST.replace("Do it.", "Do that."), "b.yaml")
    (finding,) = check([tmp_path])
    assert "a.yaml too" in finding.text


def test_files_that_are_no_contracts_are_not_looked_into(tmp_path: Path) -> None:
    write(tmp_path, "manifest_id: m\nroute_id: r\ncorrelation_id: c\n", "start.yaml")
    write(tmp_path, "scripts: []\n", "model.yaml")
    write(tmp_path, "not: [read", "notes.txt")
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git", "not: [read", "x.yaml")
    assert check([tmp_path]) == []
    with pytest.raises(ContractInvalid, match="holds no contract"):
        asyncio.run(publish(Rows(), tmp_path))
    with pytest.raises(ContractInvalid, match="cannot be read"):
        asyncio.run(publish(Rows(), tmp_path / "gone.yaml"))


def test_a_workflow_is_not_served_by_this_version(tmp_path: Path) -> None:
    write(tmp_path, "workflow_id: w\nworkflow_version: '1'\n")
    (finding,) = check([tmp_path])
    assert "not served" in finding.text


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_published_schema_is_current(name: str) -> None:
    """`python -m session_custody.contracts.schema_file schemas/contracts` writes them anew."""
    assert (schemas_dir() / "contracts" / name).read_text(encoding="utf-8") == schema_text(name)


@pytest.mark.parametrize(
    "file", sorted((examples_dir() / "fraud").glob("*.yaml")), ids=lambda file: file.name
)
def test_the_examples_are_well_formed_and_so_says_the_published_schema(file: Path) -> None:
    assert check([file]) == []
    value: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    kind = {"manifest": "manifest.schema.json", "policy": "policy.schema.json"}.get(
        file.name.split("-")[0].split(".")[0]
    )
    if kind is not None:
        Draft202012Validator(json.loads(schema_text(kind))).validate(value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("150ms", 0.15), ("5s", 5.0), ("1.5s", 1.5), ("2m", 120.0), ("24h", 86_400.0), ("7d", 604_800.0)],
)
def test_durations_read_as_written(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert seconds_of(text_of(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5 s", "-5s", "5S", "1e3s", "5s\n", "0x5s", "99999999999s"])
def test_a_duration_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is a duration"):
        seconds_of(text)


@pytest.mark.parametrize("forgotten", ["manifest_id", "manifest_version"])
def test_a_manifest_that_forgot_its_name_or_version_is_a_finding_not_another_file(
    forgotten: str, tmp_path: Path
) -> None:
    lines = [line for line in MANIFEST.splitlines() if not line.startswith(forgotten)]
    file = write(tmp_path, "\n".join(lines))
    assert [str(finding) for finding in check([tmp_path])] == [f"{file}:1: {forgotten}: is missing"]
