"""Request and Sequence: one answer being made, in host integers. No tensors, no torch."""

import enum
import itertools
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydflash.errors import EngineError
from pydflash.sampling.draw import Draw
from pydflash.sampling.mask import Grammar, TokenMask
from pydflash.sampling.params import SamplingParams
from pydflash.spec.stats import DraftStats

FinishReason = Literal["stop", "length", "abort", "error"]

_ids = itertools.count(1)


class Phase(enum.Enum):
    """Where a sequence stands. Only WAITING ones hold no pages (a preempted one waits again)."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    RECOMPUTE = enum.auto()
    DECODE = enum.auto()
    FINISHED = enum.auto()


class Steer(Protocol):
    """Follows one answer and may put other tokens in place of those drawn: a thought closed by force."""

    @property
    def degenerate(self) -> bool:
        """The answer is to end at its latest token: it only repeats itself."""

    def step(self, sampled: int) -> int:
        """Take the token drawn next; returns the one that counts. Called once a token, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to answer and how.

    `speculate`: drafts may be verified for it; without, every token takes a step of its own.

    `capture_at` names lengths of the prompt that later requests may come back to: the end of a system
    prompt, say, or of a message. A recurrent state is kept at the last point of the prefill grid up to
    each, and at the prompt's last if that leaves room; attention's pages are kept anyhow.

    `reuse`: it may start from what others stored, and they from what it stores.

    `steer` belongs to this request alone. `grammar`: what the answer must be a text of; it ends where the
    grammar does.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    speculate: bool = True
    capture_at: tuple[int, ...] = ()
    reuse: bool = True
    steer: Steer | None = None
    grammar: Grammar | None = None
    id: int = field(default_factory=lambda: next(_ids))


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened, in seconds of `time.perf_counter`."""

    added: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request under way. `tokens` are prompt and answer; the last one is pending while decoding."""

    request: Request
    max_tokens: int
    tokens: list[int]
    phase: Phase = Phase.WAITING
    stored: int = 0  # mirrors the state's length
    cached: int = 0  # prompt tokens that others had stored when it began
    is_exact: bool = True  # the state is what a cold run of the same tokens stores
    finish: FinishReason | None = None
    stop_token: int | None = None
    clock: Clock = field(default_factory=Clock)
    mask: TokenMask | None = None  # its place in the request's grammar, after all of `tokens`
    draft: DraftStats = field(default_factory=DraftStats)  # how its drafts fared

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    def settle(self) -> Phase:
        """The phase that `stored` implies for a sequence holding pages."""
        if self.stored < self.num_prompt:
            return Phase.PREFILL
        if self.stored < len(self.tokens) - 1:
            return Phase.RECOMPUTE
        return Phase.DECODE


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step gave one sequence: new tokens with their draws, and whether it ended then.

    `finish` and `stop_token` are as they were after that step: the sequence itself moves on while a slow
    reader still has this result before it.
    """

    sequence: Sequence
    draws: tuple[Draw, ...] = ()
    error: EngineError | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None

    @classmethod
    def of(
        cls, sequence: Sequence, draws: tuple[Draw, ...] = (), error: EngineError | None = None
    ) -> "StepResult":
        """The result of the step that just changed `sequence`."""
        return cls(
            sequence=sequence,
            draws=draws,
            error=error,
            finish=sequence.finish,
            stop_token=sequence.stop_token,
        )

    @property
    def finished(self) -> bool:
        return self.finish is not None
