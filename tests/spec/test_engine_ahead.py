"""Drafts that are started before the step ends: picked up for the same rows, else done anew; same text."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pydflash.draft.base import DraftRow, Started
from pydflash.draft.config import SelectorConfig
from pydflash.draft.dflash import DFlash
from pydflash.engine.engine import Engine
from pydflash.engine.request import Request
from pydflash.kernels.record import Again
from pydflash.sampling.params import SamplingParams
from pydflash.spec.speculator import Speculator
from tests.backends import ON_GPU
from tests.spec.test_engine_draft import TREES, network, some
from tests.spec.test_engine_exact import _count_preemptions, make_engine, run
from tests.tiny.draft import tiny_config
from tests.tiny.gguf import tiny_gguf

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture(params=["llama", "qwen35"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("ahead") / "tiny.gguf", request.param)


class Watch:
    """The drafts that an engine starts: for whom, and what became of them."""

    def __init__(self, engine: Engine) -> None:
        proposer = engine.proposer
        assert isinstance(proposer, Speculator)
        self.drafter = proposer.drafter
        assert isinstance(self.drafter, DFlash)
        self.started: list[list[DraftRow]] = []
        self.taken = 0  # drafts that were picked up
        self.anew = 0  # those that were not started before
        self.failing = 0  # times that starting is to fail
        self._start, self._score = self.drafter.start, self.drafter.score
        self.drafter.start = self.start  # type: ignore[method-assign]
        self.drafter.score = self.score  # type: ignore[method-assign]

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> Started | None:
        if self.failing:
            self.failing -= 1
            raise torch.OutOfMemoryError("none left")
        self.started.append(list(rows))
        started = self._start(rows, slots, top_k, guess=guess)
        if started is not None:
            scores = started.scores

            def taken():  # type: ignore[no-untyped-def]
                self.taken += 1
                return scores()

            started.scores = taken  # type: ignore[method-assign]
        return started

    def score(self, rows, slots, top_k):  # type: ignore[no-untyped-def]
        self.anew += 1
        return self._score(rows, slots, top_k)


def ahead(path: Path, tree: str = "bushy", **more: object) -> tuple[Engine, Watch]:
    selector = more.pop("selector", False)
    extra = {"selector": SelectorConfig(rank=8, top_k=4)} if selector else {}
    record = None if ON_GPU else Again()
    drafts = network(tiny_config(block_size=6, **extra), TREES[tree], record=record)
    engine = make_engine(path, speculate=drafts, **more)  # type: ignore[arg-type]
    return engine, Watch(engine)


@pytest.mark.parametrize("tree", ["bushy", "adaptive"])
@pytest.mark.parametrize("selector", [False, True])
def test_text_is_that_of_plain_decoding(path: Path, tree: str, selector: bool) -> None:
    """Requests come, end and are preempted between a draft's start and its use."""
    plain = [run(make_engine(path), [r])[0] for r in some()]
    engine, watch = ahead(path, tree, selector=selector, pages=7)
    preempted = _count_preemptions(engine)
    assert run(engine, some(), [0, 0, 3, 5, 20]) == plain
    assert watch.taken
    if tree == "bushy":
        assert preempted, "the pool was meant to be too small"
        assert watch.taken > watch.anew > 0
        assert len(watch.started) > watch.taken, "some were for nothing"


def test_acceptance_is_that_of_drafts_made_when_wanted(path: Path) -> None:
    """Not only the text: the same trees are drafted."""
    stats = []
    for early in (True, False):
        engine, watch = ahead(path)
        if not early:
            engine.proposer.prepare = lambda rows, beside=0, *, grow=True: None  # type: ignore[method-assign]
        sequence = engine.add(Request(prompt=tuple(range(5, 45)), params=GREEDY, seed=1))
        while not engine.is_idle:
            engine.step()
        assert bool(watch.taken) == early
        assert bool(watch.anew) != early
        stats.append((sequence.tokens, sequence.draft.accepted, sequence.draft.offered))
    assert stats[0] == stats[1]


def test_one_sequence_drafts_once_a_round(path: Path) -> None:
    """Every round's draft but the last was started in time, and none after the end."""
    engine, watch = ahead(path)
    sequence = engine.add(Request(prompt=tuple(range(5, 45)), params=GREEDY, seed=1))
    while not engine.is_idle:
        engine.step()
    assert watch.anew == 0
    assert watch.taken == len(watch.started) == sequence.draft.rounds
    assert sequence.draft.draft_s > 0


def test_a_stale_draft_is_dropped(path: Path) -> None:
    """A row fewer, a row more, another context: none of them takes what was started."""
    plain = run(make_engine(path), [Request(prompt=(5, 6, 7), params=GREEDY, seed=1)])[0]
    engine, watch = ahead(path)
    first = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    second = engine.add(Request(prompt=(8, 9), params=GREEDY, seed=2))
    for _ in range(3):
        engine.step()
    assert [r.tokens for r in watch.started[-1]] == [first.tokens, second.tokens]
    taken, anew = watch.taken, watch.anew
    engine.abort(second.request.id)
    engine.step()
    assert (watch.taken, watch.anew) == (taken, anew + 1)
    assert [r.tokens for r in watch.started[-1]] == [first.tokens]
    engine.step()
    assert (watch.taken, watch.anew) == (taken + 1, anew + 1)
    engine.states.of(first).drop_draft()  # as when there was no memory to feed it
    while not engine.is_idle:
        engine.step()
    assert watch.taken == taken + 1
    assert first.generated == plain


def test_without_memory_to_start_the_round_drafts_as_ever(path: Path) -> None:
    plain = run(make_engine(path), [Request(prompt=(5, 6, 7), params=GREEDY, seed=1)])[0]
    engine, watch = ahead(path)
    watch.failing = 2
    sequence = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    while not engine.is_idle:
        engine.step()
    assert sequence.generated == plain
    assert watch.anew == 2
    assert watch.taken == sequence.draft.rounds - 2


@pytest.mark.parametrize("part", ["catch_up", "_best"])
def test_without_memory_partway_through_a_start(path: Path, part: str) -> None:
    """Before the drafter took the context in, and behind: the next round does what is left."""
    plain = run(make_engine(path), [Request(prompt=(5, 6, 7), params=GREEDY, seed=1)])[0]
    engine, watch = ahead(path)
    sequence = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    engine.step()
    work, failed = getattr(watch.drafter, part), 0

    def scarce(*args: object) -> object:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        return work(*args)

    setattr(watch.drafter, part, scarce)
    while not engine.is_idle:
        engine.step()
        engine.states.check()
    assert failed > 1
    assert sequence.generated == plain
    assert watch.anew == 1
    assert watch.taken == sequence.draft.rounds - 1


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_giving_way_between_a_start_and_its_use(path: Path, kind: type[Exception]) -> None:
    """The row that a draft was started for loses its place, and the step that reads a prompt fails."""
    plain = run(make_engine(path), [Request(prompt=(5, 6, 7), params=GREEDY, seed=1)])[0]
    engine, watch = ahead(path)
    first = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    while not watch.taken:
        engine.step()
    second = engine.add(Request(prompt=tuple(range(5, 155)), params=GREEDY, seed=2))
    engine.step()  # reads its first chunk, and starts a draft for the other
    assert engine._early_s > 0.0
    started, taken = len(watch.started), watch.taken
    forward = engine.graphs.forward

    def scarce(work: object, trees: object = None) -> object:
        raise kind("CUDA error: out of memory")

    engine.scheduler.preempt(first)
    engine.graphs.forward = scarce  # type: ignore[method-assign,assignment]
    results = engine.step()
    engine.graphs.forward = forward  # type: ignore[method-assign]
    assert [r.error is not None for r in results] == [True]
    assert second.finish == "error"
    assert engine._early_s == 0.0, "seconds of a draft that nobody used are no later round's"
    assert (len(watch.started), watch.taken) == (started, taken)
    while not engine.is_idle:
        engine.step()
        engine.states.check()
    assert first.generated == plain
    assert watch.taken > taken, "drafts are started ahead again"
    assert len(watch.started) - started == watch.taken - taken, "and the old one was for nothing"


@pytest.mark.skipif(ON_GPU, reason="a GPU always works ahead")
def test_nothing_is_started_where_the_host_would_do_the_work(path: Path) -> None:
    engine = make_engine(path, speculate=network(tiny_config(block_size=6), TREES["bushy"]))
    watch = Watch(engine)
    sequence = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    while not engine.is_idle:
        engine.step()
    assert watch.taken == 0
    assert watch.anew == sequence.draft.rounds
