"""Logging: one logger tree under `pydflash`. A program that uses the package as a library configures it
as it likes; the command line shows warnings and errors, one line each, on stderr."""

import logging
import sys

_ROOT = "pydflash"


class _Stderr(logging.Handler):
    """Writes where stderr is at that moment, in the words of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.levelname.lower()}: {self.format(record)}\n")


def set_up() -> None:
    """Show this package's warnings and errors on stderr. Calling it again changes nothing."""
    root = logging.getLogger(_ROOT)
    root.setLevel(logging.WARNING)
    if not any(isinstance(handler, _Stderr) for handler in root.handlers):
        root.addHandler(_Stderr())
