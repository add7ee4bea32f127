"""Known models and where they come from: fetch, verify, cache, remove."""

from pydflash.catalog.cache import Installed
from pydflash.catalog.entry import DEFAULT_MODEL, Entry, HubSource, WheelSource, entries
from pydflash.catalog.progress import Progress
from pydflash.catalog.store import installed, pull, remove, resolve

__all__ = [
    "DEFAULT_MODEL",
    "Entry",
    "HubSource",
    "Installed",
    "Progress",
    "WheelSource",
    "entries",
    "installed",
    "pull",
    "remove",
    "resolve",
]
