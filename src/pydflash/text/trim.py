"""Text between two markers, without the white space at its ends, passed on as it comes."""

from dataclasses import dataclass, field

Segment = tuple[str, int]
"""A text and the offset of its first character in all that the model wrote."""


@dataclass(slots=True)
class Trimmer:
    """Holds white space back until other text follows it.

    `strip`: the white space at the start is dropped at once. `eager`: white space after other text is
    not held back (for stop strings that end with it).
    """

    strip: bool = False
    eager: bool = False
    last: str = ""  # the character passed on last, "" while there is none
    held: list[Segment] = field(default_factory=list)

    def push(self, text: str, at: int) -> list[Segment]:
        """What may be passed on now, in order."""
        if self.strip:
            bare = text.lstrip()
            text, at = bare, at + len(text) - len(bare)
            self.strip = not text
        size = len(text.rstrip())
        if self.eager and (size or self.last):
            size = len(text)
        if not size:
            self.held += [(text, at)] if text else []
            return []
        passed = [*self.held, (text[:size], at)]
        self.last = text[size - 1]
        self.held = [(text[size:], at + size)] if size < len(text) else []
        return passed
