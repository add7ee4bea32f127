"""`pydflash pull`: fetch a model into the cache."""

from typing import Annotated

from cyclopts import Parameter

from pydflash import catalog


def pull(
    model: Annotated[str, Parameter(help="a catalogue name, or hf:owner/repo/file.gguf")] = (
        catalog.DEFAULT_MODEL
    ),
    /,
    *,
    force: Annotated[bool, Parameter(help="fetch again even if it is there", negative="")] = False,
    quiet: Annotated[bool, Parameter(help="no progress bar", negative="")] = False,
) -> None:
    """Fetch a model into the cache and print where it is."""
    print(fetch(model, force=force, quiet=quiet))


def fetch(model: str, *, force: bool = False, quiet: bool = False) -> str:
    """Pull with a progress bar on stderr; return the file's path."""
    if quiet:
        return str(catalog.pull(model, force=force))
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(model, total=None)
        phase = ""

        def report(progress: catalog.Progress) -> None:
            nonlocal phase
            if progress.phase != phase:
                phase = progress.phase
                verb = {"wait": "waiting for another pull of"}.get(phase, phase)
                bars.reset(task, description=f"{verb} {model}")
            bars.update(task, completed=progress.done_bytes, total=progress.total_bytes)

        return str(catalog.pull(model, progress=report, force=force))
