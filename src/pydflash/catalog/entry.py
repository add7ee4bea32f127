"""The catalogue's records: what a model is called, what it is, and where its file comes from."""

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pydflash.errors import CatalogError

HUB_PREFIX = "hf:"
DEFAULT_MODEL = "smollm2-135m"
_HUB_SPEC = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A file of a Hugging Face repository. No `file`: list the repository and take what `prefer` names."""

    repo: str
    file: str | None = None
    revision: str | None = None
    sha256: str | None = None
    prefer: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB_PREFIX}{self.repo}{revision}" + (f"/{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSource:
    """One file inside a wheel of the Python package index; the wheel's dependencies are never fetched."""

    package: str
    version: str
    member: str
    wheel_sha256: str
    wheel_bytes: int
    sha256: str

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}/{self.member}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A known model. `bytes` is the size of the file, None where it is not known beforehand."""

    name: str
    source: HubSource | WheelSource
    summary: str = ""
    architecture: str = ""
    licence: str = "see the repository"
    bytes: int | None = None
    drafter: str | None = None


@cache
def entries() -> tuple[Entry, ...]:
    """Every model of the catalogue, in its order."""
    text = resources.files("pydflash.catalog").joinpath("models.toml").read_text("utf-8")
    return tuple(_entry(name, table) for name, table in tomllib.loads(text).items())


def find(spec: str) -> Entry | None:
    """The entry of a catalogue name or of `hf:owner/repo[@revision][/file]`; None when it is neither."""
    if spec.startswith(HUB_PREFIX):
        match = _HUB_SPEC.fullmatch(spec)
        if match is None or ".." in spec:
            raise CatalogError(f"{spec} is not of the form hf:owner/repo/file.gguf")
        source = HubSource(**match.groupdict())
        name = re.sub(r"[^\w.-]+", "--", spec.removeprefix(HUB_PREFIX))
        return Entry(name=name, source=source, summary="from Hugging Face")
    return next((entry for entry in entries() if entry.name == spec.lower()), None)


def suggest(name: str) -> str:
    """` (did you mean X?)` for a near miss of a catalogue name, else an empty string."""
    close = difflib.get_close_matches(name.lower(), [e.name for e in entries()], n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def _entry(name: str, table: dict[str, object]) -> Entry:
    fields = dict(table)
    hub, wheel = fields.pop("hub", None), fields.pop("wheel", None)
    source = HubSource(**hub) if isinstance(hub, dict) else WheelSource(**wheel)  # type: ignore[arg-type]
    return Entry(name=name, source=source, **fields)  # type: ignore[arg-type]
