"""Logging: one logger tree under `pydflash`. A program that uses the package as a library configures it
as it likes; the command line shows warnings and errors, one line each, on stderr, or JSON where asked."""

import json
import logging
import sys
from datetime import UTC, datetime

_ROOT = "pydflash"


class _Stderr(logging.Handler):
    """Writes where stderr is at that moment, in the words of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{record.levelname.lower()}: {self.format(record)}\n")


class JsonLines(logging.Formatter):
    """One object a line; a record's `fields` (`extra={"fields": …}`) become keys of it."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def set_up() -> None:
    """Show this package's warnings and errors on stderr. Calling it again changes nothing."""
    root = logging.getLogger(_ROOT)
    root.setLevel(logging.WARNING)
    if not any(isinstance(handler, _Stderr) for handler in root.handlers):
        root.addHandler(_Stderr())


def set_up_json() -> None:
    """Everything that anybody in this process logs or warns of, as JSON lines on stderr; ours in detail."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().handlers[:] = [handler]
    ours = logging.getLogger(_ROOT)
    ours.handlers.clear()
    ours.setLevel(logging.INFO)
    logging.captureWarnings(True)
