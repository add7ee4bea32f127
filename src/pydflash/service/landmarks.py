"""Landmarks: the lengths of a prompt that later requests are likely to come back to.

An agent's next turn repeats all messages and adds some; an edit repeats all but the last one; another
conversation of the same agent repeats its system prompt and tools. Invariant: where a landmark lies is never
guessed: that other conversation is rendered by the same template, and the tokens it shares are counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydflash.errors import TemplateError

Messages = list[dict[str, Any]]

_ANYBODY = {"role": "user", "content": "?"}  # templates may refuse a conversation without a user
_ANSWER = {"role": "assistant", "content": "."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What recurrent states can be kept of one sequence: `most`, on a grid of `grid` tokens."""

    most: int
    grid: int

    def choose(self, landmarks: Iterator[int]) -> tuple[int, ...]:
        """The first landmarks, one for each point of the grid; the rest are not looked for."""
        chosen: dict[int, int] = {}
        while len(chosen) < self.most and (length := next(landmarks, None)) is not None:
            if length >= self.grid:
                chosen.setdefault(length // self.grid, length)
        return tuple(chosen.values())


def landmarks(
    said: Messages,
    tokens: Sequence[int],
    encode: Callable[[Messages], Sequence[int]],
    *,
    least: int,
) -> Iterator[int]:
    """How many tokens of the prompt are shared by: the next turn, whatever the answer is; a conversation
    with the same system prompt and tools; and one that is the same up to the end of each message, latest
    first, down to `least` tokens.

    `encode` renders messages, without the beginning of an answer, to tokens; what its template refuses is
    left out.
    """

    def shared(messages: Messages) -> int | None:
        try:
            mine = encode(messages)
        except TemplateError:
            return None
        return next(
            (i for i, (a, b) in enumerate(zip(mine, tokens, strict=False)) if a != b),
            min(len(mine), len(tokens)),
        )

    if len(tokens) < least:
        return
    head = 1 if said and said[0]["role"] == "system" else 0
    for messages in ([*said, _ANSWER], [*said[:head], _ANYBODY]):
        if (length := shared(messages)) is not None:
            yield length
    for count in range(len(said), head, -1):
        length = shared(said[:count])
        if length is not None and length < least:
            return
        if length is not None:
            yield length
