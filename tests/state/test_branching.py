"""Whole models: trees, rollback, snapshots and sharing, in any order, are plain decoding bit for bit."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pydflash.engine.request import Phase
from pydflash.spec.proposal import Proposal
from pydflash.state.sequence import NotKept, SequenceState
from tests.backends import BACKENDS
from tests.driver import Driver
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

PROMPT = [7, 11, 13]
SHAPE = {"hidden": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn": 32, "vocab": 280}
DELTA = DeltaShape(k_heads=1, v_heads=2, state=8)
MOE = MoeShape(experts=4, ffn=16, shared=16)


class Plain:
    """Every prefix decoded one token at a time by a driver of its own, remembered."""

    def __init__(self, path: Path, ops: str) -> None:
        self.driver = Driver(path, ops=ops, pages=80, slots=1)
        self.known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """f32 [V] after PROMPT and `tokens`."""
        key = tuple(tokens)
        if key not in self.known:
            state = self.driver.state()
            self.driver.prefill(state, PROMPT)
            for i, row in enumerate(self.driver.decode(state, tokens)):
                self.known[key[: i + 1]] = row
            state.release()
        return self.known[key]


class Bench:
    """Sequences under test, each beside the tokens it should hold."""

    def __init__(self, path: Path, ops: str) -> None:
        self.driver = Driver(path, ops=ops, pages=60, slots=40, captured=True)
        self.pairs: list[tuple[SequenceState, list[int]]] = []

    def new(self) -> None:
        state = self.driver.state()
        self.driver.prefill(state, PROMPT)
        self.pairs.append((state, []))

    def check(self) -> None:
        for state, tokens in self.pairs:
            state.check()
            assert state.length == len(PROMPT) + len(tokens)
        self.driver.pool.check(s.pages for s, _ in self.pairs)
        if self.driver.recurrent is not None:
            self.driver.recurrent.check([n for s, _ in self.pairs for n in s.slots_held()])


def tree(dice: random.Random) -> Proposal:
    """Up to eight nodes, each below any earlier one."""
    tokens, parents, depth = [dice.randrange(280)], [-1], [0]
    for node in range(1, dice.randint(1, 8)):
        parent = dice.randrange(node)
        tokens.append(dice.randrange(280))
        parents.append(parent)
        depth.append(depth[parent] + 1)
    return Proposal(tuple(tokens), tuple(parents), tuple(depth))


VERBS = st.lists(
    st.tuples(
        st.sampled_from(
            ["verify", "verify", "verify", "extend", "capture", "rollback", "share", "export"]
        ),
        st.integers(0, 3),
        st.randoms(use_true_random=False),
    ),
    max_size=10,
)


@pytest.fixture(params=["llama", "qwen35", "qwen35moe"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("branching")
    extra = {} if request.param == "llama" else {"delta": DELTA, "moe": MOE}
    return tiny_gguf(folder / "tiny.gguf", request.param, **SHAPE, **extra)


@pytest.fixture(params=BACKENDS, scope="module")
def ops(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def plain(path: Path, ops: str) -> Plain:
    return Plain(path, ops)


@given(verbs=VERBS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_order_of_verbs_says_what_plain_decoding_says(
    path: Path, ops: str, plain: Plain, verbs: list[tuple[str, int, random.Random]]
) -> None:
    bench = Bench(path, ops)
    d = bench.driver
    bench.new()
    bench.new()
    held = d.recurrent.nbytes if d.recurrent is not None else 0
    for verb, which, dice in verbs:
        i = which % len(bench.pairs)
        state, tokens = bench.pairs[i]
        if verb == "verify":
            rows = [p for p in bench.pairs if p[0] is state or dice.random() < 0.5]
            _verify(bench, plain, rows, dice)
        elif verb == "extend":
            more = [dice.randrange(280) for _ in range(dice.randint(1, 5))]
            d.step([(state, Phase.RECOMPUTE, more)])
            state.extend(len(more))
            tokens += more
        elif verb == "capture":
            state.capture()
        elif verb == "rollback":
            _rollback(d, state, tokens, dice)
        elif len(bench.pairs) < 5:
            other = state.share() if verb == "share" else d.state()
            if verb == "export":
                other.import_(state.export())
            bench.pairs.append((other, list(tokens)))
        bench.check()
    _verify(bench, plain, bench.pairs, random.Random(0))
    if d.recurrent is not None:
        assert d.recurrent.nbytes == held


def _verify(
    bench: Bench,
    plain: Plain,
    rows: list[tuple[SequenceState, list[int]]],
    dice: random.Random,
) -> None:
    """A tree each in one step, every node compared, then a random path of each committed."""
    trees = [tree(dice) for _ in rows]
    found = bench.driver.step(
        [(state, Phase.DECODE, t) for (state, _), t in zip(rows, trees, strict=True)]
    )
    for (state, tokens), t, logits in zip(rows, trees, found, strict=True):
        for node in range(len(t.tokens)):
            branch = [t.tokens[n] for n in t.path(node)]
            assert torch.equal(logits[node], plain.logits(tokens + branch))
        accepted = t.path(dice.randrange(len(t.tokens)))
        state.commit(accepted)
        tokens += [t.tokens[n] for n in accepted]


def _rollback(d: Driver, state: SequenceState, tokens: list[int], dice: random.Random) -> None:
    wanted = dice.randint(0, state.length)
    point = state.restore_point(wanted)
    if point < wanted:
        with pytest.raises(NotKept, match=f"length {wanted} was not captured.*{point}"):
            state.rollback(wanted)
    state.rollback(point)
    if state.length < len(PROMPT):
        state.rollback(0)
        d.prefill(state, PROMPT)
    del tokens[state.length - len(PROMPT) :]


def test_what_a_tree_keeps_grows_by_operands_not_by_states(path: Path, ops: str) -> None:
    """Between a step and its commit, a node holds the operands of its update and nothing else."""
    d = Driver(path, ops=ops)
    if d.recurrent is None:
        return
    state = d.state()
    d.prefill(state, PROMPT)
    sizes = []
    for nodes in (8, 16):
        d.verify(state, Proposal.chain(range(nodes)))
        tape = d.recurrent.layers[0].tape
        assert tape is not None
        sizes.append(sum(t.nbytes for t in (tape.k, tape.delta, tape.decay, tape.rows)))
        state.rollback(len(PROMPT))
    spec = next(s for s in d.model.state_specs() if hasattr(s, "tape_bytes"))
    assert sizes == [8 * spec.tape_bytes, 16 * spec.tape_bytes]
    assert spec.tape_bytes < spec.slot_bytes


def test_a_step_that_was_not_committed_is_noticed(path: Path, ops: str) -> None:
    d = Driver(path, ops=ops)
    state = d.state()
    d.prefill(state, PROMPT)
    d.verify(state, Proposal.root(5))
    if d.recurrent is None:
        d.decode(state, [5])
        return
    with pytest.raises(AssertionError, match="never committed"):
        d.verify(state, Proposal.root(5))
    state.rollback(0)
    d.prefill(state, PROMPT)


def test_wide_trees_of_two_sequences_in_one_step(path: Path, ops: str, plain: Plain) -> None:
    bench = Bench(path, ops)
    bench.new()
    bench.new()
    for round in range(3):
        _verify(bench, plain, bench.pairs, random.Random(round))
        bench.check()
