"""`python -m session_custody.contracts.schema_file FOLDER`: the JSON Schemas of the contract files.

Editors complete and check manifests with them; `schemas/contracts/` holds them, and a test says that they are
current.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from session_custody.contracts.shape import ManifestFile, PolicyFile

FILES: Final[dict[str, type[BaseModel]]] = {
    "manifest.schema.json": ManifestFile,
    "policy.schema.json": PolicyFile,
}


def schema_text(name: str) -> str:
    """The file `name` as it should be."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FILES[name].model_json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / name).write_text(schema_text(name), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
