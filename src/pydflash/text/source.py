"""Text that arrives in pieces, read by generators that wait for more of it.

A reader is a generator that yields only when it needs text that has not come yet, and never asks how
much is there. So what it finds cannot depend on how the text was cut (a process with blocking reads
is deterministic); only `run` shows the cuts, in pieces whose sum is the same.
"""

import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]


class Words:
    """A set of words to find: the one that starts earliest, of those that start together the shortest."""

    def __init__(self, *words: str) -> None:
        assert all(words)
        self.words = tuple(sorted(set(words), key=lambda word: (len(word), word)))
        self.longest = max(map(len, self.words), default=0)
        # A set without words matches nowhere.
        self.pattern = re.compile("|".join(map(re.escape, self.words)) or r"(?!)")
        self._by_first: dict[str, list[str]] = {}
        for word in self.words:
            self._by_first.setdefault(word[0], []).append(word)

    def begun(self, text: str, start: int) -> int:
        """Where in text[start:] the earliest word begins that more text could complete (or the end)."""
        for at in range(max(start, len(text) - self.longest + 1), len(text)):
            words = self._by_first.get(text[at])
            if words:
                tail = text[at:]
                if any(len(word) > len(tail) and word.startswith(tail) for word in words):
                    return at
        return len(text)


@lru_cache(maxsize=512)
def words_of(*words: str) -> Words:
    """The set of these words, made once: requests of one client bring the same tools again."""
    return Words(*words)


class Source:
    """A text with a place in it. `mark` and `rewind` go back as far as the mark."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._forgotten = 0
        self._mark: int | None = None

    @property
    def offset(self) -> int:
        """The place: how many characters of all the text are read."""
        return self._forgotten + self._at

    def feed(self, text: str) -> None:
        """More text. What lies before the place (or the mark) is forgotten."""
        keep = self._at if self._mark is None else self._mark
        self._text = self._text[keep:] + text if keep else self._text + text
        self._at -= keep
        self._forgotten += keep
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        """No more text will come: readers that wait are to be resumed once more."""
        self.ended = True

    def mark(self, behind: int) -> None:
        """Remember the text from `behind` characters before here: the word that `run` just ended at."""
        self._mark = self._at - behind
        assert self._mark >= 0

    def since_mark(self) -> str:
        """The text read since the mark; the mark is taken away."""
        assert self._mark is not None
        text = self._text[self._mark : self._at]
        self._mark = None
        return text

    def rewind(self) -> None:
        """Back to the mark, which is taken away."""
        assert self._mark is not None
        self._at, self._mark = self._mark, None

    def peek(self) -> Reading[str]:
        """The next character, not consumed; "" at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def take(self) -> Reading[str]:
        """The next character; "" at the end."""
        char = yield from self.peek()
        self._at += len(char)
        return char

    def spaces(self) -> Reading[str]:
        """All white space here."""
        taken: list[str] = []
        while (char := (yield from self.peek())).isspace():
            taken.append(char)
            self._at += 1
        return "".join(taken)

    def match(self, words: Words) -> Reading[str]:
        """The word that stands here, consumed; "" and nothing consumed if none does."""
        while True:
            here = self._text[self._at : self._at + words.longest]
            for word in words.words:
                if here.startswith(word):
                    self._at += len(word)
                    return word
            if self.ended or not any(word.startswith(here) for word in words.words):
                return ""
            yield

    def run(self, words: Words) -> Reading[tuple[str, str]]:
        """(text, word): the next text that is surely before any word, and the word if it is reached.

        Both are "" at the end only. The cuts between texts are where the pieces happened to end.
        """
        while True:
            found = words.pattern.search(self._text, self._at)
            limit = len(self._text) if self.ended else words.begun(self._text, self._at)
            start = self._at
            if found is not None and found.start() <= limit:
                self._at = found.end()
                return self._text[start : found.start()], found.group()
            if limit > start or self.ended:
                self._at = limit
                return self._text[start:limit], ""
            yield

    def until(self, words: Words) -> Reading[tuple[str, str]]:
        """(all text before the first word, that word): both consumed; the word is "" at the end."""
        texts: list[str] = []
        while True:
            text, word = yield from self.run(words)
            texts.append(text)
            if word or not text:
                return "".join(texts), word
