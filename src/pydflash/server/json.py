"""Json: a reply of JSON, compact and in UTF-8."""

from typing import Any

from starlette.responses import Response

from pydflash.text.json_text import compact


class Json(Response):
    """A JSON reply."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return compact(content).encode("utf-8")
