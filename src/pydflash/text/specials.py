"""Special tokens in raw text: found before anything else, leftmost first, longest at one place.

Control and unknown tokens are matched only when special parsing is on; user-defined tokens always.
"""

import re
from collections.abc import Iterator, Mapping


class SpecialSplitter:
    """Cuts a text into ordinary pieces and special token ids."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens` maps the text of each special token to its id; empty texts are ignored."""
        self._ids = {text: token for text, token in tokens.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        starts = "".join(map(re.escape, self._lengths))
        self._start = re.compile(f"[{starts}]") if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yields non-empty ordinary pieces (str) and special ids (int), in order."""
        done = 0
        at = 0
        while self._start is not None and (found := self._start.search(text, at)) is not None:
            at = found.start()
            for size in self._lengths[text[at]]:
                token = self._ids.get(text[at : at + size])
                if token is not None:
                    if at > done:
                        yield text[done:at]
                    yield token
                    at += size
                    done = at
                    break
            else:
                at += 1
        if done < len(text):
            yield text[done:]
