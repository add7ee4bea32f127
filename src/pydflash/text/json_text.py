"""JSON text and values: strict, finite, and sayable in UTF-8."""

import json
import math
from typing import Any

NULL = "null"


def dump(value: object) -> str:
    """JSON text: characters as they are, but lone surrogates (which UTF-8 cannot say) escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def compact(value: object) -> str:
    """JSON for the wire: without spaces, and lone surrogates replaced, as strict parsers refuse even their
    escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


def parse_json(text: str) -> Any:
    """The JSON value, None if it is none (NaN and infinities are none, nor are numbers beyond all floats)."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def parse_object(text: str) -> dict[str, Any] | None:
    """The JSON object, None if the text is not one."""
    value = parse_json(text)
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not finite")
    return number
