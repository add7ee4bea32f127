"""Suite: every prompt answered plainly and with drafts, in turn, in one process; and by a peer, if asked.

The two ways take turns going first, prompt by prompt, so that neither always finds the warmer machine.
Both must give the same tokens: the figures say whether they did, and name the prompts where they did not.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pydflash.bench.pairs import Answered, Pair, TaskFigures
from pydflash.bench.prompts import Case, Message, PromptSet
from pydflash.bench.step import PAUSE_S
from pydflash.errors import ConfigError
from pydflash.sampling.params import SamplingParams

_WARM_TOKENS = 16


class Subject(Protocol):
    """A loaded model that can answer either way."""

    @property
    def ctx(self) -> int: ...

    @property
    def drafts(self) -> bool:
        """Whether there is anything that drafts."""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, through the chat template."""

    def answer(self, tokens: Sequence[int], params: SamplingParams, *, draft: bool) -> Answered: ...


class Peer(Protocol):
    """Another engine: plain, greedy, as many tokens as asked."""

    def answer(self, tokens: Sequence[int], steps: int) -> Answered: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a run gave. `skipped` names the prompts that do not fit in the context."""

    tasks: tuple[TaskFigures, ...]
    skipped: tuple[str, ...] = ()

    @property
    def whole(self) -> TaskFigures:
        """All tasks together."""
        return TaskFigures(task="all", pairs=tuple(p for task in self.tasks for p in task.pairs))

    @property
    def identical(self) -> bool | None:
        return self.whole.identical


def run_suite(
    subject: Subject,
    sets: Sequence[PromptSet],
    params: SamplingParams,
    *,
    peer: Peer | None = None,
    on_pair: Callable[[str, Pair], None] | None = None,
) -> Suite:
    """Answer every case of every set. `params` needs a seed and `max_tokens`; `on_pair` hears (task, pair).

    Raises ConfigError when no prompt is left to measure.
    """
    runner = _Runner(subject, params, peer)
    tasks = []
    for prompts in sets:
        pairs: list[Pair] = []
        for case in prompts.cases:
            for pair in runner.case(case):
                pairs.append(pair)
                if on_pair is not None:
                    on_pair(prompts.name, pair)
        if pairs:
            tasks.append(TaskFigures(task=prompts.name, pairs=tuple(pairs)))
    if not tasks:
        raise ConfigError(
            f"no prompt fits: the context holds {subject.ctx} tokens and an answer may take "
            f"{params.max_tokens}; lower --max-tokens or raise --max-ctx"
        )
    return Suite(tasks=tuple(tasks), skipped=tuple(runner.skipped))


class _Runner:
    """Takes cases one by one and remembers whose turn it is."""

    def __init__(self, subject: Subject, params: SamplingParams, peer: Peer | None) -> None:
        self._subject = subject
        self._params = params
        self._peer = peer
        self._count = 0
        self.skipped: list[str] = []

    def case(self, case: Case) -> list[Pair]:
        """The pairs of a case, one for each thing the user says. The plain answer is what stays said."""
        messages, pairs = list(case.messages), []
        assert self._params.max_tokens is not None
        for turn in range(len(case.later) + 1):
            name = f"{case.id}.{turn + 1}" if case.later else case.id
            tokens = self._subject.encode(messages)
            if len(tokens) + self._params.max_tokens > self._subject.ctx:
                self.skipped.append(name)
                break
            pair = self._pair(name, tokens)
            pairs.append(pair)
            if turn < len(case.later):
                messages.append({"role": "assistant", "content": pair.plain.text})
                messages.append({"role": "user", "content": case.later[turn]})
        return pairs

    def _pair(self, name: str, tokens: Sequence[int]) -> Pair:
        if not self._count:
            self._warm(tokens)
        ways = [False, True] if self._subject.drafts else [False]
        if self._count % 2:
            ways.reverse()
        found: dict[bool, Answered] = {}
        peer: Answered | None = None
        # The peer answers as long as we did, so it cannot be first: second and last, in turn.
        seat = 1 if self._count // 2 % 2 else len(ways)
        for place, draft in enumerate(ways):
            if place == seat:
                peer = self._theirs(tokens, found[ways[0]])
            time.sleep(PAUSE_S)
            found[draft] = self._subject.answer(tokens, self._params, draft=draft)
        if peer is None:
            peer = self._theirs(tokens, found[ways[0]])
        self._count += 1
        return Pair(
            id=name,
            prompt_tokens=len(tokens),
            plain=found[False],
            draft=found.get(True),
            peer=peer,
        )

    def _theirs(self, tokens: Sequence[int], ours: Answered) -> Answered | None:
        if self._peer is None:
            return None
        time.sleep(PAUSE_S)
        return self._peer.answer(tokens, ours.steps)

    def _warm(self, tokens: Sequence[int]) -> None:
        """Touch every page and cache once; nobody's figure."""
        assert self._params.max_tokens is not None
        few = replace(self._params, max_tokens=min(_WARM_TOKENS, self._params.max_tokens))
        self._subject.answer(tokens, few, draft=False)
        if self._subject.drafts:
            self._subject.answer(tokens, few, draft=True)
        if self._peer is not None:
            self._peer.answer(tokens, _WARM_TOKENS)
