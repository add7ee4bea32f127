"""Fetch model files from a Hugging Face repository (or a server that speaks its protocol, HF_ENDPOINT).

`huggingface_hub` moves the bytes; here it is decided which files, whether they fit, whether what
arrived is what the server declared, and how each refusal is said.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.catalog.cache import StoredFile, require_space, sha256_of
from pydflash.catalog.entry import HubSource
from pydflash.catalog.progress import Phase, Progress, Report
from pydflash.errors import CatalogError

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remote:
    """What the server declares of one file."""

    file: str
    bytes: int
    commit: str | None
    sha256: str | None


def fetch_hub(source: HubSource, into: Path, report: Report) -> tuple[StoredFile, ...]:
    """Download the file, all its parts if it is split, into `into`; verify size and checksum."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # errors are raised; we say them
    try:
        names = _parts(source.file or _choose(source))
        remotes = [_declared(source, name) for name in names]
        total = sum(remote.bytes for remote in remotes)
        require_space(into, total, str(source))
        stored, before = [], 0
        for remote in remotes:
            meter = _Meter(report, before, total)
            stored.append(_download(source, remote, into, meter))
            before += remote.bytes
    except Exception as error:
        explained = _explain(source, error)
        if explained is None:
            raise
        raise explained from error
    shutil.rmtree(into / ".cache", ignore_errors=True)  # huggingface_hub's own notes
    return tuple(stored)


def in_hub_cache(source: HubSource) -> Path | None:
    """The file in Hugging Face's own cache, where `hf download` and other programs put it."""
    if source.file is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = [
        try_to_load_from_cache(source.repo, name, revision=source.revision)
        for name in _parts(source.file)
    ]
    return Path(found[0]) if all(isinstance(path, str) for path in found) else None  # type: ignore[arg-type]


class _Meter:
    """Turns the increments the hub library counts into positions within the whole model."""

    def __init__(self, report: Report, before: int, total: int) -> None:
        self._report, self._before, self._total, self._done = report, before, total, 0

    def add(self, count: float) -> None:
        self._done += int(count)
        self.at("download", self._done)

    def at(self, phase: Phase, done: int) -> None:
        self._report(Progress(phase=phase, done_bytes=self._before + done, total_bytes=self._total))


def _endpoint() -> str | None:
    # huggingface_hub reads this once at import; reading it here lets a running program change it.
    return os.environ.get("HF_ENDPOINT") or None


def _server() -> str:
    return _endpoint() or "https://huggingface.co"


def _declared(source: HubSource, name: str) -> _Remote:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.repo, name, revision=source.revision, endpoint=_endpoint())
    meta = get_hf_file_metadata(url, endpoint=_endpoint())
    if meta.size is None:
        raise CatalogError(f"the server does not say how large {name} of {source.repo} is")
    # The etag of a large file is its SHA-256; that of a small one is a git hash.
    declared = meta.etag if meta.etag and _SHA256.fullmatch(meta.etag) else None
    return _Remote(file=name, bytes=meta.size, commit=meta.commit_hash, sha256=declared)


def _download(source: HubSource, remote: _Remote, into: Path, meter: _Meter) -> StoredFile:
    from huggingface_hub import hf_hub_download

    path = Path(
        hf_hub_download(
            source.repo,
            remote.file,
            revision=remote.commit or source.revision,
            local_dir=into,
            endpoint=_endpoint(),
            tqdm_class=_bar(meter.add),
        )
    )
    flat = into / path.name
    path.replace(flat)
    found = sha256_of(flat, lambda done: meter.at("verify", done))
    is_first = remote.file == source.file
    for expected in (remote.sha256, source.sha256 if is_first else None):
        if expected is not None and found != expected:
            raise CatalogError(
                f"{remote.file} from {source.repo} does not have the expected checksum "
                f"(sha256 {found} instead of {expected}): pull again, or check the endpoint"
            )
    size = flat.stat().st_size
    if size != remote.bytes:
        raise CatalogError(f"{remote.file} has {size:,} bytes instead of {remote.bytes:,}")
    return StoredFile(name=flat.name, bytes=size, sha256=found)


def _choose(source: HubSource) -> str:
    """The repository's GGUF file that `prefer` names, or its only one; else an error listing them."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=_endpoint()).model_info(source.repo, revision=source.revision)
    names = sorted(sibling.rfilename for sibling in info.siblings or [])
    # mmproj files are vision towers; of a split model only the first part stands for it.
    names = [n for n in names if n.endswith(".gguf") and "mmproj" not in n.lower()]
    names = [n for n in names if (part := _PART.search(n)) is None or int(part[1]) == 1]
    ending = re.compile(rf"[-.]{re.escape(source.prefer or '')}(-\d{{5}}-of-\d{{5}})?\.gguf$")
    # `UD-` marks another recipe under the same type name.
    preferred = [n for n in names if source.prefer and ending.search(n) and "UD-" not in n]
    for candidates in (preferred, names):
        if len(candidates) == 1:
            return candidates[0]
    if not names:
        raise CatalogError(f"the repository {source.repo} holds no GGUF file")
    revision = f"@{source.revision}" if source.revision else ""
    raise CatalogError(
        f"{source.repo} holds {len(names)} GGUF files; name one, "
        f"as in `pydflash pull hf:{source.repo}{revision}/{names[0]}`: {', '.join(names)}"
    )


def _parts(file: str) -> list[str]:
    """All files of a split model, given its first; otherwise just the file."""
    part = _PART.search(file)
    if part is None:
        return [file]
    if int(part[1]) != 1:
        raise CatalogError(f"{file} is a later part of a split model: name its first part")
    stem, count = file[: part.start()], int(part[2])
    return [f"{stem}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _bar(add: Callable[[float], None]) -> Any:
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        """Counts for us and draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            add(n or 0)
            return None

    return Bar


def _explain(source: HubSource, error: Exception) -> CatalogError | None:
    """The refusal in one sentence with its remedy; None for what is not the hub's doing."""
    from huggingface_hub import errors

    repo, cause = source.repo, _cause(error)
    match cause:
        case errors.GatedRepoError():
            return CatalogError(
                f"{repo} is gated: accept its licence on https://huggingface.co/{repo}, then log in "
                "with `hf auth login` or set HF_TOKEN"
            )
        case errors.RepositoryNotFoundError():
            return CatalogError(
                f"there is no repository {repo}, or it is private: check the name, "
                "or log in with `hf auth login` or HF_TOKEN"
            )
        case errors.RevisionNotFoundError():
            return CatalogError(f"{repo} has no revision {source.revision}")
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            return CatalogError(
                f"{source} is not in the cache and Hugging Face is switched off: "
                "unset HF_HUB_OFFLINE to fetch it"
            )
        case errors.FileMetadataError():
            return CatalogError(
                f"{_server()} does not answer like a Hugging Face hub: "
                "check HF_ENDPOINT, and the proxy if there is one"
            )
        case errors.EntryNotFoundError():
            return CatalogError(
                f"{repo} has no file {source.file}: `pydflash pull hf:{repo}` lists what it has"
            )
        case errors.HfHubHTTPError():
            status = cause.response.status_code if cause.response is not None else "?"
            if status == 401:
                return CatalogError(
                    "Hugging Face refused the token: renew it with `hf auth login` or in HF_TOKEN"
                )
            return CatalogError(f"Hugging Face answered {status} for {source}: try again later")
        case errors.HFValidationError():
            return CatalogError(f"{repo} is not a valid repository name: use owner/name")
    if type(cause).__module__.partition(".")[0] in {"httpx", "httpx2", "httpcore", "requests"}:
        return CatalogError(
            f"no connection to {_server()} while fetching {source} "
            f"({type(cause).__name__}): check the network or the proxy"
        )
    if isinstance(cause, OSError) and "Consistency check failed" in str(cause):
        return CatalogError(f"the download of {source} stopped early: pull again")
    return None


def _cause(error: Exception) -> BaseException:
    # With the server gone mid-way, the library says "not in the cache" and keeps the reason behind it.
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return error.__cause__
    return error
