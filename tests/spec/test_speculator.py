"""Speculator between the policy and drafts that are started ahead."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from pydflash.draft.base import Context, DraftRow, DraftScores
from pydflash.spec.proposer import Outcome, Spent
from pydflash.spec.speculator import Speculator, draft_sizes
from pydflash.spec.stats import DraftStats
from tests.backends import table
from tests.spec.synthetic import OTHER, USELESS, Decoding, adaptive, draft_s, step_s


class Hopeless:
    """A drafter that is sure and always wrong; it can start ahead."""

    name = "hopeless"
    slots = 15
    taps: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.law = Decoding(adaptive())
        self.fails: list[Exception] = []

    def catch_up(self, contexts: Sequence[Context]) -> None:
        if self.fails:
            raise self.fails.pop()

    def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        self.catch_up([])
        return [self.law._scores(USELESS, slots) for _ in rows]

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> "Made":
        return Made(self.score(rows, slots, top_k))


class Made:
    guesses = None

    def __init__(self, made: list[DraftScores]) -> None:
        self.made = made

    def scores(self) -> list[DraftScores]:
        return self.made


def drafted(rounds: int, *, ahead: bool) -> list[int]:
    """The rounds that drafted, of a text in which nothing is guessed."""
    speculator = Speculator(Hopeless(), adaptive())
    tokens, stats, out = [1], DraftStats(), []
    for i in range(rounds):
        rows = [DraftRow(tokens=tokens, context=None, fresh=not i)]
        proposal = speculator.propose(rows)[0]
        if slots := speculator._slots:
            out.append(i)
        tokens.append(OTHER)
        if ahead:
            speculator.prepare([DraftRow(tokens=tokens, context=None, fresh=False)])
        outcome = Outcome(
            proposal=proposal,
            rows=len(proposal.tokens),
            position=i,
            path=[0],
            drawn=[OTHER],
            stats=stats,
        )
        width = len(proposal.tokens)
        spent = Spent(draft_s=draft_s(slots), step_s=step_s(width), rows=width, prefill=0)
        speculator.settle([], [outcome], spent)
    return out


def test_a_probe_is_not_followed_by_another_that_was_started_ahead() -> None:
    late, early = drafted(400, ahead=False), drafted(400, ahead=True)
    first = next(i for i, n in enumerate(late) if n != i)  # until then drafting was believed to pay
    assert len(late) - first > 3
    assert len(early) <= len(late) + 1, "one more at most, where the belief was lost"
    probes = early[first + 1 :]
    assert all(b - a > 1 for a, b in pairwise(probes))


SCARCE = [
    torch.OutOfMemoryError("none left"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]


@pytest.mark.parametrize("error", SCARCE, ids=["torch", "driver"])
def test_without_memory_the_round_is_plain(error: Exception) -> None:
    drafter = Hopeless()
    speculator = Speculator(drafter, adaptive())
    rows = [DraftRow(tokens=[1, 2], context=None, fresh=True)]
    drafter.fails = [error]
    speculator.prepare(rows)
    assert not drafter.fails
    drafter.fails = [error]
    assert len(speculator.propose(rows)[0].tokens) == 1
    assert not drafter.fails
    assert speculator._slots == 0


def test_other_errors_are_not_swallowed() -> None:
    drafter = Hopeless()
    speculator = Speculator(drafter, adaptive())
    rows = [DraftRow(tokens=[1, 2], context=None, fresh=True)]
    for call in (speculator.prepare, speculator.propose):
        drafter.fails = [RuntimeError("an illegal memory access was encountered")]
        with pytest.raises(RuntimeError, match="illegal"):
            call(rows)


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 15])
def test_few_sizes_are_drafted_where_each_is_captured(slots: int) -> None:
    sizes = draft_sizes(slots)
    assert sizes == tuple(sorted(set(sizes)))
    assert sizes[0] == 1
    assert sizes[-1] == slots
    assert len(sizes) <= 4


def test_a_captured_draft_has_as_many_slots_as_wanted_or_more() -> None:
    drafter, policy = Hopeless(), adaptive()
    drafter.taps = (0,)  # a network; a look-up drafts what is wanted, wherever the model runs
    ahead, host = Speculator(drafter, policy, table("ref")), Speculator(drafter, policy)
    rows = [DraftRow(tokens=[1])]
    for wanted in range(drafter.slots + 1):
        policy.slots = lambda *_, n=wanted: n  # type: ignore[method-assign]
        assert host._chosen_slots(rows, 0) == wanted
        got = ahead._chosen_slots(rows, 0)
        assert got in (0, *draft_sizes(drafter.slots))
        assert got >= wanted
        assert bool(got) == bool(wanted)
        assert Speculator(Hopeless(), policy, table("ref"))._chosen_slots(rows, 0) == wanted
