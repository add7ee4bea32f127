"""`pydflash models`: the catalogue and what of it is on this machine."""

import json
from typing import Annotated, Any

from cyclopts import Parameter

from pydflash import catalog
from pydflash.catalog.cache import megabytes, models_dir


def models(
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", help="print one JSON object", negative="")
    ] = False,
) -> None:
    """List the models of the catalogue, and the others in the cache."""
    rows = _rows()
    if as_json:
        print(json.dumps({"cache": str(models_dir()), "models": rows}, indent=1))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "architecture", "size", "here", "what", box=box.SIMPLE_HEAD)
    for row in rows:
        size = megabytes(row["bytes"]) if row["bytes"] else "?"
        here = "yes" if row["path"] else "no"
        table.add_row(row["name"], row["architecture"], size, here, row["summary"])
    console = Console()
    console.print(table)
    console.print(f"cache: {models_dir()}", soft_wrap=True, highlight=False)


def _rows() -> list[dict[str, Any]]:
    here = {model.name: model for model in catalog.installed()}
    rows = []
    for entry in catalog.entries():
        model = here.pop(entry.name, None)
        rows.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "architecture": entry.architecture,
                "licence": entry.licence,
                "source": str(entry.source),
                "bytes": model.bytes if model else entry.bytes,
                "path": str(model.path) if model else None,
            }
        )
    for model in here.values():
        rows.append(
            {
                "name": model.name,
                "summary": "not of the catalogue",
                "architecture": "",
                "licence": "see the repository",
                "source": model.source,
                "bytes": model.bytes,
                "path": str(model.path),
            }
        )
    return rows
