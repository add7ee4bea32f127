"""Tool results for templates that know no tool's turn and want them inside the turn that called.

Gemma 4's first templates are so: a message of role `tool` would become a turn of a strange speaker.
"""

import re
from collections.abc import Sequence
from typing import Any

_READS_ROLE = re.compile(r"""role['"\])\s]*[!=]=\s*['"]tool['"]|['"]tool['"]\s*[!=]=\s*\S*role""")


def wants_responses(source: str) -> bool:
    """Does the template read `tool_responses` and no turns of role `tool`?"""
    return "tool_responses" in source and _READS_ROLE.search(source) is None


def with_responses(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each run of results moved into the assistant's turn before it.

    Where none stands before, an empty one is put there.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "tool":
            found.append(dict(message))
            continue
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": ""})
        found[-1].setdefault("tool_responses", []).append(
            {"name": message["name"], "response": _text(message["content"])}
        )
    return found


def _text(content: object) -> object:
    if not isinstance(content, list | tuple):
        return content
    return "\n".join(str(part.get("text", "")) for part in content)
