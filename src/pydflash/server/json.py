"""JSON on the wire: compact, UTF-8, and never a crash over half a surrogate that a client sent."""

import json
from typing import Any

from starlette.responses import Response


def dumps(value: Any) -> str:
    """Compact JSON; what UTF-8 cannot say is replaced."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode("utf-8")


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dumps(content).encode("utf-8")
