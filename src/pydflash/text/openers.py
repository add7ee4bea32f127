"""What opens a tool call in visible text, and who reads on from there."""

from collections.abc import Callable
from dataclasses import dataclass

from pydflash.text import block
from pydflash.text.calls import Calls
from pydflash.text.source import Reading, Source
from pydflash.text.tools import dsml, json_call, keyed, verb, xml_function
from pydflash.text.toolset import Toolset

Reader = Callable[[Source, Calls, str], Reading[str | None]]

STRAYS = (
    block.END,
    *xml_function.STRAYS,
    *json_call.STRAYS,
    *keyed.STRAYS,
    *verb.STRAYS,
    *dsml.STRAYS,
)
"""Tags that mean nothing where no call is open: taken out of the text."""


@dataclass(frozen=True, slots=True)
class Opener:
    """`read` gets the word that opened and returns None if that was no call after all.

    `after_gap`: not an opener right behind a letter or digit.
    """

    read: Reader
    after_gap: bool = False


def openers(tools: Toolset, *, bare_keyed: bool = False) -> dict[str, Opener]:
    """By the word that opens. All families at once: models write each other's forms.

    `bare_keyed`: `NAME<arg_key>` too, for which text that may become a name is held back.
    """
    found: dict[str, Opener] = {
        block.OPEN: Opener(block.read_block),
        xml_function.OPEN: Opener(xml_function.read_function),
        json_call.OPEN: Opener(json_call.read_tool_code),
        verb.OPEN_TAGGED: Opener(verb.read_tagged),
        verb.OPEN_PLAIN: Opener(verb.read_plain, after_gap=True),
        **{word: Opener(dsml.read_block) for word in dsml.OPEN},
    }
    for name in tools.names:
        found.setdefault(f"<{name}>", Opener(xml_function.read_named))
        if bare_keyed:
            found[f"{name}{keyed.KEY}"] = Opener(keyed.read_keyed_bare, after_gap=True)
    return found
