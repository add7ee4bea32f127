"""Engine.step with recurrent layers: preemption, drafts and kept conversations change no token."""

import random
from pathlib import Path

import pytest
import torch

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request, Sequence
from pydflash.errors import RequestError
from pydflash.sampling.params import SamplingParams
from pydflash.state.sequence import Snapshot
from tests.backends import BACKENDS
from tests.spec.test_engine_exact import Guesses, _count_preemptions, make_engine, requests, run
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

ANSWER = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture(params=["qwen35", "qwen35moe"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(
        tmp_path_factory.mktemp("hybrid") / "tiny.gguf",
        request.param,
        hidden=32,
        heads=2,
        kv_heads=1,
        ffn=32,
        delta=DeltaShape(k_heads=1, v_heads=2, state=8),
        moe=MoeShape(experts=4, ffn=16, shared=16),
    )


@pytest.fixture(params=BACKENDS, scope="module")
def ops(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def plain(path: Path, ops: str) -> list[list[int]]:
    return [run(make_engine(path, ops=ops), [r])[0] for r in requests()]


def test_eight_sequences_say_what_each_says_alone(
    path: Path, ops: str, plain: list[list[int]]
) -> None:
    engine = make_engine(path, ops=ops, pages=9)
    preempted = _count_preemptions(engine)
    assert run(engine, requests(), [0, 3, 5, 9, 20, 21, 22, 40]) == plain
    assert preempted, "the pool was meant to be too small"


@pytest.mark.parametrize("seed", range(2))
def test_drafts_change_speed_never_text(
    path: Path, ops: str, plain: list[list[int]], seed: int
) -> None:
    asked = requests()
    known = {r.id: [*r.prompt, *said] for r, said in zip(asked, plain, strict=True)}
    guesses = Guesses(known, seed)
    engine = make_engine(path, ops=ops, pages=16, proposer=guesses)
    dice = random.Random(seed)
    assert run(engine, asked, [dice.randrange(20) for _ in asked]) == plain
    assert guesses.hits > 50
    assert all(layer.tape is None for layer in engine.states.recurrent.layers)


def ask(engine: Engine, prompt: list[int], capture_at: tuple[int, ...] = ()) -> Sequence:
    request = Request(prompt=tuple(prompt), params=ANSWER, seed=1, capture_at=capture_at)
    sequence = engine.add(request)
    while not engine.is_idle:
        engine.step()
        engine.states.check()
    return sequence


def points(engine: Engine) -> list[int]:
    """Lengths of prompts at which a recurrent state waits."""
    return sorted(n.length for n in engine.states.cache._index if n.slot is not None and not n.end)


def left(engine: Engine, sequence: Sequence) -> Snapshot:
    """What a finished sequence left at its end."""
    state, tokens = engine.states.new(), sequence.tokens[:-1]
    engine.states.cache.start(state, tokens, exact=False)
    assert state.length == len(tokens)
    snapshot = state.export()
    state.release()
    return snapshot


def same_bits(a: Snapshot, b: Snapshot) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.recurrent, b.recurrent, strict=True))


def test_a_conversation_goes_on_where_it_ended(path: Path, ops: str) -> None:
    engine = make_engine(path, ops=ops)
    prompt = list(range(10, 60))
    said = ask(engine, prompt).generated
    again = [*prompt, *said, 70, 71]
    sequence = ask(engine, again)
    assert sequence.cached == len(prompt) + len(said) - 1
    assert sequence.generated == ask(make_engine(path, ops=ops), again).generated


def test_a_rewritten_end_is_read_again_from_the_grid(path: Path, ops: str) -> None:
    """The template dropped a thought: the text is the same up to token 48, the grid's point is 32."""
    engine = make_engine(path, ops=ops)
    prompt = list(range(10, 60))
    ask(engine, prompt)
    again = [*prompt[:48], 90, 91, 92]
    sequence = ask(engine, again)
    assert sequence.cached == 32
    fresh = make_engine(path, ops=ops)
    cold = ask(fresh, again)
    assert sequence.generated == cold.generated
    assert same_bits(left(engine, sequence), left(fresh, cold)), "as if nothing had been there"
    assert ask(engine, [5, *prompt]).cached == 0


def test_a_request_names_where_later_ones_come_back_to(path: Path, ops: str) -> None:
    """Two turns rewrite what follows a system prompt of 70 tokens, and what follows 40 of it."""
    engine = make_engine(path, ops=ops, captures=2, running=1)
    prompt = list(range(10, 140))
    named = (40, 70)
    ask(engine, prompt, named)
    assert points(engine) == [32, 64], "on the grid below"
    for start, cached in ((90, 64), (100, 64), (50, 32), (80, 64)):
        again = [*prompt[:start], *range(200, 230)]
        sequence = ask(engine, again, named)
        assert sequence.cached == cached
        fresh = make_engine(path, ops=ops, captures=2, running=1)
        cold = ask(fresh, again, named)
        assert sequence.generated == cold.generated
        assert same_bits(left(engine, sequence), left(fresh, cold))
        prompt = again


@pytest.mark.parametrize(("named", "kept"), [((), [96]), ((40,), [32, 96]), ((40, 70), [32, 64])])
def test_the_last_point_is_kept_where_names_leave_room(
    path: Path, named: tuple[int, ...], kept: list[int]
) -> None:
    engine = make_engine(path, ops="ref", captures=2)
    ask(engine, list(range(10, 138)), named)
    assert points(engine) == kept


def test_named_lengths_survive_preemption(path: Path, ops: str) -> None:
    engine = make_engine(path, ops=ops, pages=7, running=2, captures=2)
    preempted = _count_preemptions(engine)
    asked = [
        Request(
            prompt=tuple(range(first, first + 75)),
            params=SamplingParams(max_tokens=40, ignore_eos=True),
            seed=0,
            capture_at=(33, 66),
        )
        for first in (5, 6)
    ]
    run(engine, asked)
    assert preempted
    assert points(engine)[-1] == 64
    assert ask(engine, [*asked[1].prompt[:70], 9, 9]).cached == 64


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ((0,), "capture_at 0 lies outside"),
        ((41,), "41 lies outside the prompt of 40"),
        ((8, 32), "names 2 lengths, 1 can be kept.*--captures"),
    ],
)
def test_lengths_that_cannot_be_kept_are_refused(
    path: Path, at: tuple[int, ...], words: str
) -> None:
    engine = make_engine(path, ops="ref")
    with pytest.raises(RequestError, match=words) as caught:
        ask(engine, list(range(10, 50)), at)
    assert caught.value.param == "capture_at"
    assert engine.is_idle


def test_kept_slots_yield_to_running_sequences(path: Path, ops: str) -> None:
    engine = make_engine(path, ops=ops, running=2, slots=2)
    ask(engine, list(range(3, 90)))
    ask(engine, list(range(4, 91)))
    asked = [Request(prompt=tuple(range(3, 40)), params=ANSWER, seed=i) for i in range(3)]
    assert all(len(said) == 8 for said in run(engine, asked))
    engine.states.forget()
    assert engine.states.recurrent.num_free == 2
