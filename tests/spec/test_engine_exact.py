"""Engine.step: what a sequence says does not depend on its neighbours, on pages, or on drafts."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pydflash.checkpoint.files import open_checkpoint
from pydflash.draft.base import Context, DraftRow
from pydflash.engine.engine import Engine
from pydflash.engine.graphs import GraphPool
from pydflash.engine.request import Request, StepResult
from pydflash.engine.states import States, layer_states
from pydflash.errors import ContextLengthError, NonFiniteError, RequestError
from pydflash.kernels.ops import OpTable
from pydflash.kernels.record import Recorder, recorder
from pydflash.models.base import Model
from pydflash.models.load import describe
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Outcome, Proposer, Spent
from pydflash.state.base import recurrent_specs
from pydflash.state.cache import PrefixCache
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from pydflash.state.ring import RingStore
from tests.backends import FAST, ON_GPU, table

EOG = frozenset({2})
Speculate = Callable[[Model, OpTable, int], tuple[Proposer, RingStore | None]]


def make_engine(
    path: Path,
    *,
    ops: str = FAST,
    pages: int = 64,
    running: int = 8,
    proposer: Proposer | None = None,
    chunk: int = 32,
    max_ctx: int = 256,
    slots: int = 0,
    captures: int = 1,
    cache: str = "on",
    speculate: Speculate | None = None,
    record: Recorder | None = None,
    vocab: int | None = None,
) -> Engine:
    """`speculate` makes the proposer, and its rings if it has any, once there is a model to draft for.
    `record` captures steps where the device has no graphs. `vocab`: tokens that may be drawn."""
    kernels = table(ops, threads=2)
    if speculate is not None and not ON_GPU:  # as a device would have them
        ref = table("ref")
        kernels = replace(
            kernels, calibrate=ref.calibrate, grow_trees=ref.grow_trees, plant=ref.plant
        )
    described = describe(open_checkpoint(path))
    model = described.load(kernels, max_ctx)
    specs = model.state_specs()
    scratch = ON_GPU or record is not None
    commits = record or recorder(kernels)
    kv = KvStore(specs, pages, "f16", "f16", kernels, scratch=scratch, record=commits)
    hybrid = recurrent_specs(specs)
    recurrent = None
    if hybrid:
        count = slots or (1 + captures) * running
        recurrent = RecurrentStore(hybrid, count, kernels, scratch=scratch)
    rings = None
    if speculate is not None:
        proposer, rings = speculate(model, kernels, running)
    pool = PagePool(pages)
    prefixes = PrefixCache(pool, recurrent, grid=chunk, answers=cache == "on")
    states = States(
        pool,
        kv,
        recurrent,
        layer_states(specs, kv, recurrent),
        rings=rings,
        cache=None if cache == "off" else prefixes,
        captures=captures,
    )
    taps = proposer.taps if proposer is not None else ()
    graphs = GraphPool(model, states, max_ctx=max_ctx, taps=taps, record=record, vocab_size=vocab)
    return Engine(
        model,
        states,
        max_ctx=max_ctx,
        max_running=running,
        prefill_chunk=chunk,
        max_exact_rows=24,
        eog=EOG,
        proposer=proposer,
        graphs=graphs,
    )


def requests() -> list[Request]:
    """Eight: greedy and sampled, short and long, with penalties and limits."""
    dice = random.Random(3)
    kinds = [
        SamplingParams(max_tokens=50),
        SamplingParams(max_tokens=40, temperature=1.0),
        SamplingParams(max_tokens=60, temperature=0.7, top_k=20, top_p=0.9),
        SamplingParams(max_tokens=45, temperature=1.3, min_p=0.05, repetition_penalty=1.2),
        SamplingParams(max_tokens=30, frequency_penalty=0.5, rep_window=16),
        SamplingParams(max_tokens=55, temperature=0.9, presence_penalty=0.4, ignore_eos=True),
        SamplingParams(max_tokens=20, temperature=2.0, min_tokens=15),
        SamplingParams(max_tokens=70, logit_bias={7: 3.0}, temperature=0.5),
    ]
    out = []
    for i, params in enumerate(kinds):
        prompt = tuple(dice.randrange(3, 300) for _ in range(dice.choice([1, 9, 40, 75, 32])))
        out.append(Request(prompt=prompt, params=params, seed=100 + i))
    return out


def run(engine: Engine, asked: Sequence[Request], arrivals: Sequence[int] = ()) -> list[list[int]]:
    """Tokens of each answer; request i arrives at step arrivals[i]."""
    answers: dict[int, list[int]] = {r.id: [] for r in asked}
    late = list(zip(asked, arrivals or [0] * len(asked), strict=True))
    step = 0
    while late or not engine.is_idle:
        for request, when in list(late):
            if when <= step:
                engine.add(request)
                late.remove((request, when))
        for result in engine.step():
            assert result.error is None
            answers[result.sequence.request.id] += [d.token for d in result.draws]
        engine.states.check()
        step += 1
    return [answers[r.id] for r in asked]


def alone(path: Path, ops: str) -> list[list[int]]:
    return [run(make_engine(path, ops=ops), [r])[0] for r in requests()]


@pytest.fixture(params=["llama", "qwen3"])
def path(request: pytest.FixtureRequest, tiny_llama: Path, tiny_qwen3: Path) -> Path:
    return tiny_llama if request.param == "llama" else tiny_qwen3


@pytest.mark.parametrize("seed", range(4))
def test_eight_sequences_say_what_each_says_alone(path: Path, seed: int) -> None:
    """Random arrivals, a pool too small for all: preemption must not change a token."""
    dice = random.Random(seed)
    arrivals = [dice.randrange(0, 60) for _ in range(8)]
    engine = make_engine(path, pages=9)
    preempted = _count_preemptions(engine)
    assert run(engine, requests(), arrivals) == alone(path, FAST)
    assert preempted, "the pool was meant to be too small"


def test_reference_ops_are_exact_too(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, ops="ref", pages=9)
    asked = requests()[:5]
    assert run(engine, asked, [0, 3, 5, 9, 20]) == alone(tiny_llama, "ref")[:5]


class Guesses:
    """Trees that hold the right continuation here and there among wrong ones, at random."""

    max_nodes = 7
    taps = ()

    def __init__(self, known: dict[int, list[int]], seed: int) -> None:
        self.known = known  # prompt length -> prompt and answer
        self.dice = random.Random(seed)
        self.hits = 0
        self.settled = 0

    def propose(self, rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        return [self._tree(list(row.tokens)) for row in rows]

    def settle(
        self, contexts: Sequence[Context], outcomes: Sequence[Outcome], spent: Spent
    ) -> None:
        assert not contexts  # nothing is tapped
        for outcome in outcomes:
            assert len(outcome.path) == len(outcome.drawn)
            self.settled += len(outcome.drawn)

    def grown(self, rows: Sequence[DraftRow], limit: int) -> None:
        pass

    def prepare(self, rows: Sequence[DraftRow], beside: int = 0, *, grow: bool = True) -> None:
        pass

    def _tree(self, history: list[int]) -> Proposal:
        truth: list[int] = []
        for whole in self.known.values():
            if whole[: len(history)] == history:
                truth = whole[len(history) :]
        tokens, parents, depth = [history[-1]], [-1], [0]
        on_path = {0: 0}  # node -> how far along the truth it is
        for _ in range(self.dice.randrange(self.max_nodes)):
            parent = self.dice.randrange(len(tokens))
            at = on_path.get(parent)
            right = at is not None and at < len(truth) and self.dice.random() < 0.7
            token = truth[at] if right and at is not None else self.dice.randrange(3, 300)
            if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
                continue
            if right and at is not None:
                on_path[len(tokens)] = at + 1
                self.hits += 1
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent] + 1)
        return Proposal(tuple(tokens), tuple(parents), tuple(depth))


@pytest.mark.parametrize("seed", range(3))
def test_drafts_change_speed_never_text(path: Path, seed: int) -> None:
    plain = alone(path, FAST)
    asked = requests()
    known = {r.id: [*r.prompt, *said] for r, said in zip(asked, plain, strict=True)}
    guesses = Guesses(known, seed)
    engine = make_engine(path, pages=16, proposer=guesses)
    dice = random.Random(seed)
    assert run(engine, asked, [dice.randrange(20) for _ in asked]) == plain
    assert guesses.hits > 50
    # Every token but the first of each answer, which the prompt gives, came of a round.
    assert guesses.settled == sum(len(said) - 1 for said in plain)


def test_kept_conversation_is_not_read_again(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    first = Request(prompt=tuple(range(10, 60)), params=params, seed=1)
    said = run(engine, [first])[0]
    again = Request(prompt=(*first.prompt, *said, 70, 71), params=params, seed=1)
    results: list[StepResult] = []
    engine.add(again)
    while not engine.is_idle:
        results += engine.step()
    sequence = results[-1].sequence
    # The last token of the first answer was drawn but never stored.
    assert sequence.cached == len(first.prompt) + len(said) - 1
    fresh = Request(prompt=again.prompt, params=params, seed=1)
    assert run(make_engine(tiny_llama), [fresh])[0] == sequence.generated
    engine.states.forget()
    engine.states.check()
    assert engine.states.pool.num_free == engine.states.pool.num_pages


def test_kept_state_yields_to_running_sequences(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, pages=8)
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    for first in (3, 4):
        run(engine, [Request(prompt=tuple(range(first, 90)), params=params, seed=1)])
    run(engine, [Request(prompt=tuple(range(3, 150)), params=params, seed=1)])
    engine.states.check()


def test_abort_frees_pages_at_once(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    request = Request(prompt=tuple(range(3, 90)), params=SamplingParams(), seed=1)
    sequence = engine.add(request)
    engine.step()
    assert engine.states.free() < engine.states.pool.num_pages
    assert engine.abort(request.id) is sequence
    assert engine.states.free() == engine.states.pool.num_pages
    assert engine.is_idle
    assert engine.abort(request.id) is None


def test_the_context_ends_an_answer(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_ctx=64, pages=2)
    params = SamplingParams(ignore_eos=True)
    request = Request(prompt=tuple(range(3, 43)), params=params, seed=1)
    sequence = engine.add(request)
    while not engine.is_idle:
        engine.step()
    assert sequence.finish == "length"
    assert len(sequence.tokens) == 64


def test_bad_requests_are_refused(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, max_ctx=64, pages=2)
    with pytest.raises(ContextLengthError, match="64"):
        engine.add(Request(prompt=tuple([5] * 64), params=SamplingParams(), seed=1))
    with pytest.raises(RequestError, match="empty"):
        engine.add(Request(prompt=(), params=SamplingParams(), seed=1))
    with pytest.raises(RequestError, match="99999 is outside the vocabulary"):
        engine.add(Request(prompt=(5, 99999), params=SamplingParams(), seed=1))
    with pytest.raises(RequestError, match="-1 is outside"):
        engine.add(Request(prompt=(-1,), params=SamplingParams(), seed=1))


def test_logits_that_are_not_finite_end_one_request(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    engine.graphs.captures = False  # what breaks the logits below looks at the host
    good, bad = requests()[0], Request(prompt=(5, 6), params=SamplingParams(), seed=1)
    for request in (good, bad):
        engine.add(request)
    forward = engine.model.forward

    def broken(batch, states, taps=frozenset()):  # type: ignore[no-untyped-def]
        output = forward(batch, states, taps)
        rows = [int(batch.row_of[t]) for t in batch.logit_rows]
        if len(rows) == 2:
            output.logits[1, 3] = float("nan")
        return output

    engine.graphs._model = type(
        "Broken", (), {"forward": staticmethod(broken), "vocab_size": 320}
    )()
    errors = []
    while not engine.is_idle:
        errors += [r for r in engine.step() if r.error is not None]
    assert [type(r.error) for r in errors] == [NonFiniteError]
    assert "not finite" in str(errors[0].error)
    engine.states.check()


def _count_preemptions(engine: Engine) -> list[int]:
    seen: list[int] = []
    plan = engine.scheduler.plan

    def counted(admit):  # type: ignore[no-untyped-def]
        out = plan(admit)
        seen.extend(s.request.id for s in out.preempted)
        return out

    engine.scheduler.plan = counted  # type: ignore[method-assign]
    return seen
