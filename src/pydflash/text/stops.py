"""Stop strings in a stream: text flows on, and only what may begin a stop string is held back.

Invariant: what is emitted does not depend on how the stream was cut into pushes. The match that
starts earliest wins; of those that start at one place the longest seen is the one reported.
"""

import re

from pydflash.errors import RequestError


class StopMatcher:
    """Watches one stream of text for stop strings; the stop string itself is never emitted."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        """Raises RequestError for an empty stop string, which would match everywhere."""
        if not all(stops):
            raise RequestError("a stop string is empty; leave it out or give it text", param="stop")
        self._stops = tuple(sorted(set(stops), key=lambda stop: (-len(stop), stop)))
        self._pattern = re.compile("|".join(map(re.escape, self._stops))) if stops else None
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, str | None]:
        """(text now sure to be output, the stop string hit or None). After a hit all text is dropped."""
        if self._stopped:
            return "", None
        if self._pattern is None:
            return text, None
        self._held += text
        match = self._pattern.search(self._held)
        open_at = self._open_prefix()
        if match is not None and match.start() <= open_at:
            return self._stop(match)
        emit, self._held = self._held[:open_at], self._held[open_at:]
        return emit, None

    def flush(self) -> tuple[str, str | None]:
        """The end of the stream: what was held back, up to a stop string that it may contain."""
        match = None if self._pattern is None else self._pattern.search(self._held)
        if match is not None:
            return self._stop(match)
        emit, self._held = self._held, ""
        return emit, None

    def _stop(self, match: re.Match[str]) -> tuple[str, str | None]:
        emit, self._held = self._held[: match.start()], ""
        self._stopped = True
        return emit, match.group()

    def _open_prefix(self) -> int:
        """Where the earliest stop string that more text could still complete begins (or the end)."""
        size = len(self._held)
        for start in range(max(0, size - self._longest + 1), size):
            tail = self._held[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return size
