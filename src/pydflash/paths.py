"""Where this package keeps files of its own: one rule for models, compiled kernels and histories."""

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """`$PYDFLASH_CACHE`, or `pydflash` in the place where this system keeps a user's caches."""
    if override := os.environ.get("PYDFLASH_CACHE"):
        return Path(override).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG rule: a relative path there is to be ignored.
        base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "pydflash"
