"""Building and finding the CPU library."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydflash.errors import ConfigError
from pydflash.kernels.cpu import compile, library


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What a test finds out about its own folders and compilers is not kept."""
    yield
    library.load.cache_clear()
    library._attempt.cache_clear()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path))
    library.load.cache_clear()
    library._attempt.cache_clear()
    return tmp_path


def test_build_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile line, on units small enough for a test: named after the sources, nothing left over."""
    monkeypatch.setattr(compile, "units", lambda **_: (("copy.cpp", ("-O0",)),))
    path = compile.build(tmp_path / "new")
    assert path.name == compile.file_name()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_file_name_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.cpp").write_text("int a;")
    monkeypatch.setattr(compile, "SOURCES", tmp_path)
    before = compile.file_name()
    (tmp_path / "a.cpp").write_text("int b;")
    assert compile.file_name() != before


def test_find_prefers_nothing_stale(nowhere: Path) -> None:
    folder = nowhere / "kernels"
    folder.mkdir(parents=True)
    (folder / "pydflash_cpu-0123456789abcdef.so").write_bytes(b"old")
    assert library.find() is None
    (folder / compile.file_name()).write_bytes(b"new")
    assert library.find() == folder / compile.file_name()


def test_load_without_a_compiler_warns_once(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile.shutil, "which", lambda name: None)
    with pytest.warns(RuntimeWarning, match="no C\\+\\+ compiler found") as seen:
        assert library.load() is None
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.load() is None
        assert "compiler" in str(library.unavailable())


def test_load_with_a_broken_compiler_says_what_it_said(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho no such flag >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.warns(RuntimeWarning, match="(?s)failed with code 3.*no such flag"):
        assert library.load() is None


def test_load_and_select() -> None:
    found = library.load()
    assert found is not None
    assert library.load() is found
    assert library.unavailable() is None
    assert library.select(found, "portable") == "portable"
    with pytest.raises(ConfigError, match="mmx"):
        library.select(found, "mmx")
    assert library.select(found) in ("portable", "avx2", "avx512")
