"""Tool memory: what the model really wrote when it called tools, by the ids of its calls.

A client sends a turn back as fields, from which it can only be written anew, and never quite the
same; with the text itself the prompt of the next turn begins with the very same bytes, and what was
computed for them can be used again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

MAX_IDS = 50_000
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Remembered:
    """A turn: all its text from the assistant's header to before the end marker, and its reasoning."""

    text: str
    reasoning: str = ""


class ToolMemory:
    """Forgets the ids not used for longest, when there are too many or they hold too many bytes.

    Threads may share it.
    """

    def __init__(self, *, max_ids: int = MAX_IDS, max_bytes: int = MAX_BYTES) -> None:
        self.max_ids = max_ids
        self.max_bytes = max_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    @property
    def num_ids(self) -> int:
        return len(self._held)

    @property
    def num_bytes(self) -> int:
        """Bytes of the turns, each counted once, and of the ids."""
        return self._bytes

    def remember(self, ids: Sequence[str], turn: Remembered) -> None:
        """All calls of one turn. Does nothing if an id is empty or the turn alone is too large."""
        held = _Held(turn, frozenset(ids), _size(turn.text) + _size(turn.reasoning))
        if not ids or not all(ids) or held.num_bytes + sum(map(_size, ids)) > self.max_bytes:
            return
        with self._lock:
            for call_id in held.ids:
                self._forget(call_id)
            for call_id in ids:
                self._keep(call_id, held)
            while len(self._held) > self.max_ids or self._bytes > self.max_bytes:
                self._forget(next(iter(self._held)))

    def recall(self, ids: Sequence[str]) -> Remembered | None:
        """The turn that made these calls and no others; None if one of them is not remembered."""
        with self._lock:
            held = self._held.get(ids[0]) if ids else None
            if held is None or held.ids != set(ids) or held.uses != len(held.ids):
                return None
            for call_id in ids:
                self._held.move_to_end(call_id)
            return held.turn

    def _keep(self, call_id: str, held: "_Held") -> None:
        if call_id not in self._held:
            self._held[call_id] = held
            self._bytes += _size(call_id) + (0 if held.uses else held.num_bytes)
            held.uses += 1

    def _forget(self, call_id: str) -> None:
        held = self._held.pop(call_id, None)
        if held is not None:
            held.uses -= 1
            self._bytes -= _size(call_id) + (0 if held.uses else held.num_bytes)


@dataclass(slots=True)
class _Held:
    """A turn, all its ids, its bytes, and how many of the ids are still held."""

    turn: Remembered
    ids: frozenset[str]
    num_bytes: int
    uses: int = 0


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
