"""paths.cache_dir: one place for everything, on every system."""

import sys
from pathlib import Path

import pytest

from pydflash.catalog.cache import models_dir
from pydflash.kernels.cpu import library
from pydflash.paths import cache_dir


def test_cache_dir_follows_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: tmp_path))
    monkeypatch.setenv("PYDFLASH_CACHE", str(tmp_path / "cache"))
    assert cache_dir() == tmp_path / "cache"
    assert models_dir() == tmp_path / "cache" / "models"
    assert library.kernels_dir() == tmp_path / "cache" / "kernels"
    monkeypatch.delenv("PYDFLASH_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "pydflash"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / ".cache" / "pydflash"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_dir() == tmp_path / "Library" / "Caches" / "pydflash"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_dir() == tmp_path / "local" / "pydflash"
