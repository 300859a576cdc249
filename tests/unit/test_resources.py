"""Schemas and examples are found in a checkout and in the wheel, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from session_custody import resources

ROOT = Path(__file__).parents[2]


def test_in_a_checkout_they_stand_beside_src_and_in_the_wheel_in_the_package() -> None:
    schemas = resources.schemas_dir()
    assert schemas in {ROOT / "schemas", Path(resources.__file__).parent / "schemas"}
    assert {"RunStart.avsc", "RunResume.avsc", "StepEvent.avsc", "OutcomeEvent.avsc"} <= {
        file.name for file in schemas.iterdir()
    }


def test_the_wheels_own_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "session_custody"
    (package / "examples").mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.examples_dir() == package / "examples"


def test_a_strangers_folder_of_the_same_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "schemas").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "lib" / "session_custody")
    monkeypatch.setattr(resources, "_CHECKOUT", tmp_path)
    with pytest.raises(FileNotFoundError, match="without its schemas"):
        resources.schemas_dir()
    (tmp_path / "pyproject.toml").touch()
    assert resources.schemas_dir() == tmp_path / "schemas"
