"""Logging: one logger tree under `pydflash`, quiet by default, the rank in front when there are several."""

import logging
import os
import sys
from functools import cache

_ROOT = "pydflash"


def set_up(level: str = "WARNING") -> None:
    """Send this package's log to stderr at `level`. Calling it again only changes the level."""
    root = logging.getLogger(_ROOT)
    root.setLevel(level.upper())
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    rank = os.environ.get("RANK")
    prefix = f"[rank {rank}] " if rank is not None else ""
    handler.setFormatter(logging.Formatter(f"{prefix}%(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.propagate = False


@cache
def warn_once(logger: logging.Logger, message: str) -> None:
    """Log a warning the first time it is said in this process."""
    logger.warning(message)
