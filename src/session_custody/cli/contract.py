"""`custody contract`: build, check and publish manifests and policy bundles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from session_custody.cli.connect import with_store
from session_custody.cli.output import Exit, Form, Output, say, show_rows

app = typer.Typer(
    help="Contracts: tool manifests and policy bundles.", no_args_is_help=True, rich_markup_mode="markdown"
)


@app.command()
def build(
    module: Annotated[str, typer.Argument(help="Module or package with @tool functions.")],
    manifest_id: Annotated[str, typer.Option("--id", help="manifest_id.")],
    version: Annotated[str, typer.Option(help="manifest_version.")],
) -> None:
    """Print a manifest for the tools of a module; people read and complete it.

    Example: `custody contract build my_app.tools --id fraud-investigate --version 2026.08.1 > manifest.yaml`
    """
    from session_custody.tools.draft import build as build_manifest

    sys.path.insert(0, str(Path.cwd()))
    sys.stdout.write(build_manifest(module, manifest_id, version))


@app.command()
def check(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders with *.yaml and *.json.")],
) -> None:
    """Check contract files; each finding names file, line and field.

    Example: `custody contract check contracts/`
    """
    from session_custody.contracts import check as check_files

    findings = check_files(paths)
    for finding in findings:
        say(str(finding))
    if findings:
        raise typer.Exit(Exit.PROBLEMS)
    say("no findings")


@app.command()
def publish(
    folder: Annotated[Path, typer.Argument(help="A file or a folder with contract files.")],
    output: Output = Form.TABLE,
) -> None:
    """Publish contracts as immutable rows. The same content again is fine; other content is refused.

    Example: `custody contract publish contracts/`
    """
    from session_custody.contracts import publish as publish_files

    rows = with_store(lambda store: publish_files(store, folder))
    show_rows(rows, output, ("kind", "name", "version", "digest", "new"), "name")
