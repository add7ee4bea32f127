"""The flags of constrained output, and the Constraint they mean."""

from pathlib import Path

from pydflash.errors import ConfigError
from pydflash.service.constraint import Constraint


def read_constraint(
    *, json_schema: Path | None, regex: str | None, grammar: Path | None
) -> Constraint | None:
    """The one constraint asked for. Errors name its flag."""
    asked = [
        ("--json-schema", json_schema),
        ("--regex", regex),
        ("--grammar", grammar),
    ]
    given = [flag for flag, value in asked if value is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other: an answer has one constraint")
    if json_schema is not None:
        text = _read(json_schema, "--json-schema")
        return Constraint(kind="json_schema", text=text, param="--json-schema")
    if regex is not None:
        return Constraint(kind="regex", text=regex, param="--regex")
    if grammar is not None:
        return Constraint(kind="grammar", text=_read(grammar, "--grammar"), param="--grammar")
    return None


def _read(path: Path, flag: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error}") from error
