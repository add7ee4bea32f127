"""Where models live on disk: `<cache>/models/<name>/` holds the files and `source.json`, their note.

A model's directory appears by one rename once everything in it is verified, so a directory with a
note is whole; work in progress stands under `.partial`, one place per name, guarded by a lock.
"""

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pydflash.errors import CapacityError, CatalogError
from pydflash.paths import cache_dir

NOTE = "source.json"
CHUNK_BYTES = 1 << 20
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A verified file of a model: its name in the model's directory, size and checksum."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A model in the cache. `path` is the file to open (the first part of a split model)."""

    name: str
    source: str
    path: Path
    files: tuple[StoredFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def models_dir() -> Path:
    return cache_dir() / "models"


def partial_dir(name: str) -> Path:
    return models_dir() / ".partial" / name


def write_note(directory: Path, source: str, files: tuple[StoredFile, ...]) -> None:
    note = {"source": source, "files": [asdict(file) for file in files]}
    (directory / NOTE).write_text(json.dumps(note, indent=1) + "\n", "utf-8")


def read_installed(name: str) -> Installed | None:
    """The model of that name, None if absent; CatalogError when its files do not fit the note."""
    directory = models_dir() / name
    try:
        note = json.loads((directory / NOTE).read_text("utf-8"))
        files = tuple(StoredFile(**file) for file in note["files"])
        source, first = str(note["source"]), files[0]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise _damaged(name, f"its note {NOTE} cannot be read ({error})") from error
    for file in files:
        path = directory / file.name
        size = path.stat().st_size if path.is_file() else 0
        if size != file.bytes:
            raise _damaged(name, f"{file.name} has {size:,} bytes instead of {file.bytes:,}")
    return Installed(name=name, source=source, path=directory / first.name, files=files)


def sha256_of(path: Path, seen: Callable[[int], None] = lambda done: None) -> str:
    """The file's SHA-256 in hex, read in pieces; `seen` gets the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            done += len(piece)
            seen(done)
    return digest.hexdigest()


def require_space(directory: Path, needed: int, what: str) -> None:
    """Raise CapacityError unless the file system of `directory` has room for `needed` bytes."""
    place = directory
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CapacityError(
            f"{what} needs {megabytes(needed)} of disk, {directory} has {megabytes(free)} free: "
            "remove a model (pydflash rm NAME) or point PYDFLASH_CACHE at a larger disk"
        )


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn a disk that fills up, or that cannot be written, into this package's errors."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full(what) from error
        # Read-only, not permitted, a file where a directory must be, a broken disk: one remedy.
        raise CatalogError(
            f"the model cache {cache_dir()} cannot be used for {what} ({error}): "
            "set PYDFLASH_CACHE to a directory that can be written"
        ) from error


def disk_full(what: str) -> CapacityError:
    return CapacityError(
        f"the disk filled up while fetching {what} into {models_dir()}: "
        "remove a model (pydflash rm NAME) or point PYDFLASH_CACHE at a larger disk"
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"


def _damaged(name: str, why: str) -> CatalogError:
    return CatalogError(f"the cached model {name} is damaged: {why}; run `pydflash pull {name}`")
