"""Engine.step with a prefix cache: what earlier requests stored saves reading and changes no token."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pydflash.engine.engine import Engine
from pydflash.engine.request import Request, Sequence
from pydflash.errors import EngineError
from pydflash.sampling.params import SamplingParams
from pydflash.state.sequence import Snapshot
from tests.spec.test_engine_draft import TREES, network
from tests.spec.test_engine_exact import Guesses, _count_preemptions, make_engine, run
from tests.tiny.draft import tiny_config
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

CHUNK = 64  # two pages
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)


@pytest.fixture(params=["llama", "qwen3", "qwen35", "qwen35moe"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(
        tmp_path_factory.mktemp("prefix") / "tiny.gguf",
        request.param,
        hidden=32,
        heads=2,
        kv_heads=1,
        ffn=32,
        delta=DeltaShape(k_heads=1, v_heads=2, state=8),
        moe=MoeShape(experts=4, ffn=16, shared=16),
    )


def overlapping(dice: random.Random, count: int) -> list[Request]:
    """Prompts that share beginnings of every length, some whole, some within a chunk."""
    stems = [[dice.randrange(3, 300) for _ in range(220)] for _ in range(2)]
    asked = []
    for i in range(count):
        stem = dice.choice(stems)[: dice.choice([20, 64, 65, 100, 128, 150])]
        rest = [dice.randrange(3, 300) for _ in range(dice.choice([0, 1, 9, 40]))]
        hot = SamplingParams(max_tokens=dice.randrange(1, 64), temperature=0.8, ignore_eos=True)
        prompt = (*stem, *rest)
        marks = sorted({dice.randrange(1, len(prompt) + 1) for _ in range(2)})
        asked.append(Request(prompt=prompt, params=hot, seed=i, capture_at=tuple(marks)))
    return asked


def ask(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> Sequence:
    sequence = engine.add(Request(prompt=tuple(prompt), params=params, seed=1))
    while not engine.is_idle:
        engine.step()
        engine.states.check()
    return sequence


def stored(engine: Engine, tokens: list[int], *, exact: bool) -> Snapshot:
    """What the cache would give a sequence that begins with these tokens."""
    state = engine.states.new()
    engine.states.cache.start(state, tokens, exact=exact)
    snapshot = state.export()
    state.release()
    return snapshot


def same_bits(a: Snapshot, b: Snapshot) -> bool:
    pairs = [*zip(a.kv, b.kv, strict=True), *zip(a.recurrent, b.recurrent, strict=True)]
    return a.length == b.length and all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pages", [10, 48])
def test_shared_beginnings_change_no_token(path: Path, pages: int, seed: int) -> None:
    """Random overlapping prompts, several at once, in a pool that forces preemption and one that does not."""
    dice = random.Random(seed)
    asked = overlapping(dice, 14)
    cold = make_engine(path, pages=48, running=1, chunk=CHUNK, cache="off", captures=2)
    plain = [run(cold, [r])[0] for r in asked]
    assert cold.states.pool.num_free == 48

    known = {r.id: [*r.prompt, *said] for r, said in zip(asked, plain, strict=True)}
    engine = make_engine(
        path,
        pages=pages,
        running=4,
        chunk=CHUNK,
        cache="prompts",
        captures=2,
        proposer=Guesses(known, seed),
    )
    preempted = _count_preemptions(engine)
    done = _finished(engine)
    assert run(engine, asked, sorted(dice.randrange(60) for _ in asked)) == plain
    assert bool(preempted) == (pages == 10)
    assert sum(s.cached for s in done) > 0
    assert all(s.cached % CHUNK == 0 and s.cached < s.num_prompt for s in done)

    engine.states.forget()
    engine.states.check()
    assert engine.states.pool.num_free == pages
    if engine.states.recurrent is not None:
        assert engine.states.recurrent.num_free == engine.states.recurrent.num_slots


def test_a_found_prefix_has_the_bits_of_a_cold_one(path: Path) -> None:
    prompt = [5 + i % 290 for i in range(150)]
    warm, cold = (make_engine(path, chunk=CHUNK, cache=c) for c in ("on", "prompts"))
    ask(warm, prompt[:100])
    ask(warm, [*prompt[:70], 9, 9, 9])
    sequence = ask(warm, prompt)
    assert sequence.cached == 64
    ask(cold, prompt)
    mine, theirs = (stored(e, prompt, exact=True) for e in (warm, cold))
    assert mine.length == 128
    assert same_bits(mine, theirs)


@pytest.mark.parametrize("cache", ["on", "prompts", "off"])
def test_turns_are_reused_where_allowed(path: Path, cache: str) -> None:
    engine = make_engine(path, chunk=CHUNK, cache=cache)
    prompt = list(range(10, 90))
    first = ask(engine, prompt)
    assert first.cached == 0
    again = [*prompt, *first.generated, 70, 71]
    second = ask(engine, again)
    # The last token of an answer was drawn but never stored.
    assert second.cached == {"on": len(again) - 3, "prompts": 64, "off": 0}[cache]
    third = ask(engine, [*prompt, *first.generated[:2], 99])  # an answer rewritten by the template
    assert third.cached == {"on": 64, "prompts": 64, "off": 0}[cache]
    assert ask(engine, prompt[:64]).cached == 0, "one token is always read"


def test_what_follows_a_reused_turn_is_not_exact(path: Path) -> None:
    """It was computed off the grid: found with turns, never by those that must match a cold run."""
    engine = make_engine(path, chunk=CHUNK)
    prompt = list(range(10, 90))
    first = ask(engine, prompt)
    second = [*prompt, *first.generated, *range(100, 160)]
    ask(engine, second)
    longer = [*second, 7]
    assert stored(engine, longer, exact=False).length > 64
    assert stored(engine, longer, exact=True).length == 64
    cold = make_engine(path, chunk=CHUNK, cache="prompts")
    ask(cold, longer)
    engine.states.cache.answers = False  # read it as a cold run would, and be found as exact
    engine.states.cache.drop(prompt)
    ask(engine, longer)
    mine, theirs = (stored(e, longer, exact=True) for e in (engine, cold))
    assert mine.length == 128
    assert same_bits(mine, theirs)


def test_a_beginning_is_shared_while_its_first_reader_runs(path: Path) -> None:
    """Same prompt, four at once: chunks are stored once, though all four read some of them."""
    engine = make_engine(path, running=4, chunk=CHUNK, pages=40)
    prompt = tuple(range(10, 145))
    long = replace(GREEDY, max_tokens=20)
    asked = [Request(prompt=prompt, params=long, seed=i) for i in range(4)]
    done = _finished(engine)
    said = run(engine, asked, [0, 0, 3, 4])
    assert said == [said[0]] * 4
    assert [s.cached for s in done][2:] == [128, 128]

    both = [engine.add(replace(r, id=r.id + 1000)) for r in asked[:2]]
    engine.step()
    states = [engine.states.of(s) for s in both]
    assert states[0].pages[:4] == states[1].pages[:4]
    for sequence in both:
        engine.abort(sequence.request.id)
    engine.states.check()


def test_a_failed_answer_leaves_nothing(path: Path) -> None:
    engine = make_engine(path, chunk=CHUNK)
    prompt = list(range(10, 90))
    model = engine.graphs._model

    def broken(*args):  # type: ignore[no-untyped-def]
        output = model.forward(*args)
        output.logits[:] = float("nan")
        return output

    engine.graphs._model = type(
        "Broken", (), {"forward": staticmethod(broken), "vocab_size": 320}
    )()
    sequence = engine.add(Request(prompt=tuple(prompt), params=GREEDY, seed=1))
    while not engine.is_idle:
        engine.step()
    assert sequence.finish == "error"
    engine.graphs._model = model
    assert ask(engine, prompt).cached == 0


class _TooComplex:
    """A grammar that cannot go on after two tokens."""

    def start(self):  # type: ignore[no-untyped-def]
        return self

    def allowed(self, drawn: list[int]) -> None:
        self.count = getattr(self, "count", 0) + 1
        if self.count > 2:
            raise EngineError("the grammar cannot go on")

    def takes(self, tokens: list[int]) -> int:
        return len(tokens)

    def is_done(self, drawn: list[int]) -> bool:
        return False

    def commit(self, drawn: list[int]) -> None:
        pass


def test_a_grammar_that_fails_spoils_nothing(path: Path) -> None:
    engine = make_engine(path, chunk=CHUNK)
    prompt = list(range(10, 90))
    ask(engine, prompt)
    failed = Request(prompt=tuple(prompt), params=GREEDY, seed=1, grammar=_TooComplex())  # type: ignore[arg-type]
    sequence = engine.add(failed)
    while not engine.is_idle:
        engine.step()
    assert sequence.finish == "error"
    assert ask(engine, prompt).cached == 64


def test_rings_are_for_those_who_draft(path: Path) -> None:
    """Without drafts a request takes no context and leaves alone what others kept."""
    speculate = network(
        tiny_config(block_size=6, hidden=32, target_hidden=32), TREES["chain"], window=128
    )
    engine = make_engine(path, running=2, chunk=CHUNK, speculate=speculate)
    prompt = list(range(10, 90))
    ask(engine, prompt)
    rings = engine.states.rings
    assert rings is not None
    free = rings._pool.num_free
    plain = replace(_request((*prompt[:70], 4)), speculate=False)
    sequence = engine.add(plain)
    engine.step()
    assert engine.states.of(sequence).draft is None
    assert rings._pool.num_free == free
    while not engine.is_idle:
        engine.step()
    assert _context(engine, (*prompt[:70], 5, 5)) == (0, 72)


def test_a_context_is_copied_where_there_is_room(path: Path) -> None:
    """Two that leave the same text at the same place both draft from it, and so does the text's own end."""
    speculate = network(
        tiny_config(block_size=6, hidden=32, target_hidden=32), TREES["chain"], window=128
    )
    engine = make_engine(path, running=2, chunk=CHUNK, speculate=speculate)
    first = ask(engine, list(range(10, 90)))
    prompt = first.tokens[:80]
    for other in (5, 6):
        assert _context(engine, (*prompt[:70], other)) == (0, 71)
    assert _context(engine, (*first.tokens, 7)) == (0, len(first.tokens) + 1)


def _request(prompt: tuple[int, ...]) -> Request:
    return Request(prompt=prompt, params=GREEDY, seed=1)


def _context(engine: Engine, prompt: tuple[int, ...]) -> tuple[int, int]:
    """What a drafter knows after the step that read a prompt: first and end."""
    sequence = engine.add(_request(prompt))
    while not sequence.num_generated:
        engine.step()
    context = engine.states.of(sequence).draft
    assert context is not None
    span = (context.first, context.end)
    while not engine.is_idle:
        engine.step()
    engine.states.check()
    return span


def test_a_drafters_context_goes_with_its_prefix(path: Path) -> None:
    """Cut back to where the new prompt leaves the old one; running sequences take the rings first."""
    config = tiny_config(block_size=6, hidden=32, target_hidden=32)
    speculate = network(config, TREES["chain"], window=128)
    engine = make_engine(path, running=2, chunk=CHUNK, speculate=speculate)
    prompt = list(range(10, 90))
    ask(engine, prompt)
    sequence = engine.add(Request(prompt=(*prompt[:70], 5, 5), params=GREEDY, seed=1))
    engine.step()
    context = engine.states.of(sequence).draft
    assert context is not None
    assert (context.first, context.end) == (0, 72)
    while not engine.is_idle:
        engine.step()
    run(engine, [Request(prompt=(i, *prompt), params=GREEDY, seed=1) for i in range(3, 8)])
    engine.states.forget()
    rings = engine.states.rings
    assert rings is not None
    assert rings._pool.num_free == rings._pool.num_pages


def _finished(engine: Engine) -> list[Sequence]:
    """Sequences in the order in which they will end."""
    done: list[Sequence] = []
    finish = engine.states.finish

    def noted(sequence: Sequence) -> None:
        done.append(sequence)
        finish(sequence)

    engine.states.finish = noted  # type: ignore[method-assign]
    return done
