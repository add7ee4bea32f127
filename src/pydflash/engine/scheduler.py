"""Scheduler: who takes part in the next step. Policy over host integers; no tensors.

A step holds every decoding sequence, exact rows being recomputed after a preemption, and at most one
prefill chunk. Chunks end on a fixed grid of absolute positions, so that what a prompt computes does not
depend on load or neighbours. When pages run out the youngest sequence gives its own back and waits.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydflash.engine.request import Phase, Sequence


class Pages(Protocol):
    """What the scheduler may ask of the state: host arithmetic about pages."""

    def wanted(self, sequence: Sequence, count: int) -> int:
        """Pages that storing `count` more positions takes."""

    def free(self) -> int:
        """Pages free now, those that only the prefix cache holds included."""

    def release(self, sequence: Sequence) -> None:
        """Take every page from a sequence; its `stored` becomes 0."""


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's part of a step: `count` tokens from position `sequence.stored` on."""

    sequence: Sequence
    phase: Phase
    count: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows in step order: decoding, then recomputing, then prefill."""

    rows: tuple[Row, ...]
    preempted: tuple[Sequence, ...]


class Scheduler:
    """Admission in order of arrival; running sequences in order of admission, oldest first."""

    def __init__(
        self,
        *,
        max_running: int,
        prefill_chunk: int,
        max_exact_rows: int,
        width: int,
        max_ctx: int,
        pages: Pages,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_running = max_running
        self.chunk = prefill_chunk
        self._exact = max_exact_rows
        self._width = width  # nodes of the widest proposal
        self._max_ctx = max_ctx
        self._pages = pages

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Drop a finished or aborted sequence; its pages are the caller's to free."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def plan(self, admit: Callable[[Sequence], None]) -> StepPlan:
        """Admit, then fill a step. `admit` gives a sequence its state and sets `stored`."""
        self._admit(admit)
        preempted: list[Sequence] = []
        budget = self._pages.free()
        rows: list[Row] = []
        for sequence in list(self.running):
            if sequence not in self.running:
                continue  # preempted below, while an older one was served
            sequence.phase = sequence.settle()
            count = self._count(sequence, rows)
            while count and self._pages.wanted(sequence, count) > budget:
                victim = self.running[-1]
                if victim is sequence and sequence.phase is Phase.DECODE and count > 1:
                    count = 1  # a narrow step may still fit
                    continue
                self.preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    count = 0
                    break
                budget = self._pages.free() - sum(
                    self._pages.wanted(r.sequence, r.count) for r in rows
                )
            if not count:
                continue
            budget -= self._pages.wanted(sequence, count)
            rows.append(Row(sequence, sequence.phase, count))
        order = (Phase.DECODE, Phase.RECOMPUTE, Phase.PREFILL)
        rows.sort(key=lambda r: order.index(r.phase))
        return StepPlan(tuple(rows), tuple(preempted))

    def _count(self, sequence: Sequence, rows: list[Row]) -> int:
        """Tokens of this sequence that the step has room for."""
        if sequence.phase is Phase.DECODE:
            return min(self._width, self._max_ctx - sequence.stored)
        if sequence.phase is Phase.RECOMPUTE:
            used = sum(r.count for r in rows if r.phase is Phase.RECOMPUTE)
            return min(len(sequence.tokens) - 1 - sequence.stored, self._exact - used)
        if any(r.phase is Phase.PREFILL for r in rows):
            return 0
        grid_end = (sequence.stored // self.chunk + 1) * self.chunk
        return min(grid_end, sequence.num_prompt) - sequence.stored

    def _admit(self, admit: Callable[[Sequence], None]) -> None:
        while self.waiting and len(self.running) < self._max_running:
            sequence = self.waiting[0]
            # A newcomer must be able to hold all it has, or it would push others out at once.
            needs = self._pages.wanted(sequence, len(sequence.tokens) + self._width)
            if self.running and needs > self._pages.free() - self._growth():
                return
            self.waiting.popleft()
            admit(sequence)
            self.running.append(sequence)

    def _growth(self) -> int:
        """Pages that the running sequences still need for what they already have."""
        return sum(
            self._pages.wanted(s, len(s.tokens) - s.stored + self._width) for s in self.running
        )

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's pages; it waits again, ahead of all."""
        self.running.remove(sequence)
        self._pages.release(sequence)
        sequence.phase = Phase.WAITING
        self.waiting.appendleft(sequence)
