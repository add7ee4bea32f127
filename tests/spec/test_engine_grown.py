"""Trees that the device grows from its own draft and verifies before the host has seen them: the host's."""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.draft.base import DraftRow, DraftScores
from pydflash.draft.config import SelectorConfig
from pydflash.draft.heads import settle, settled
from pydflash.engine.engine import Engine
from pydflash.engine.request import Request, Sequence
from pydflash.kernels.record import Again
from pydflash.sampling.params import SamplingParams
from pydflash.spec.cost import CostModel
from pydflash.spec.grown import Grown
from pydflash.spec.policy import FULL, Policy, Settings
from pydflash.spec.proposal import Proposal
from pydflash.spec.speculator import Speculator
from tests.backends import ON_GPU
from tests.spec.test_engine_draft import TREES, network, some
from tests.spec.test_engine_exact import make_engine, run
from tests.tiny.draft import tiny_config
from tests.tiny.gguf import tiny_gguf

SLOW = "triton" if ON_GPU else "ref"
GREEDY = SamplingParams(max_tokens=10, ignore_eos=True)


@pytest.fixture(params=["llama", "qwen35"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("grown") / "tiny.gguf", request.param)


class Watch:
    """The trees that an engine takes from the device, and those that its host grows."""

    def __init__(self, engine: Engine) -> None:
        proposer = engine.proposer
        assert isinstance(proposer, Speculator)
        self.grown: list[Grown] = []
        self.asked = self.hosts = 0
        self.made: list[Proposal] = []
        self._grown, self._trees = proposer.grown, proposer.policy.trees
        proposer.grown = self.take  # type: ignore[method-assign]
        proposer.policy.trees = self.host  # type: ignore[method-assign]

    def take(self, rows: Many[DraftRow], limit: int) -> Grown | None:
        self.asked += 1
        made = self._grown(rows, limit)
        if made is not None:
            self.grown.append(made)
            on_read = made.on_read
            assert on_read is not None

            def told(read: list[Proposal]) -> None:
                self.made = read
                on_read(read)

            made.on_read = told
        return made

    def host(self, *args: object, **more: object) -> object:
        self.hosts += 1
        return self._trees(*args, **more)  # type: ignore[arg-type]


def engine_of(
    path: Path,
    tree: str = "bushy",
    *,
    selector: bool = False,
    captured: bool = False,
    **more: object,
) -> tuple[Engine, Watch]:
    extra = {"selector": SelectorConfig(rank=8, top_k=5)} if selector else {}
    record = None if ON_GPU else Again()
    drafts = network(tiny_config(block_size=6, **extra), TREES[tree], record=record)  # type: ignore[arg-type]
    engine = make_engine(
        path,
        ops=SLOW,
        speculate=drafts,
        record=record if captured else None,
        **more,  # type: ignore[arg-type]
    )
    return engine, Watch(engine)


def growing(path: Path) -> tuple[Engine, Watch, Sequence]:
    """An engine that has just taken the first of the device's trees, for this sequence."""
    engine, watch = engine_of(path)
    sequence = engine.add(Request(prompt=(5, 6, 7), params=GREEDY, seed=1))
    while not watch.grown:
        engine.step()
    return engine, watch, sequence


@pytest.mark.parametrize(("selector", "captured"), [(False, True), (True, False)])
def test_rounds_are_those_of_the_hosts_trees(path: Path, selector: bool, captured: bool) -> None:
    """Greedy and sampled requests together: the same tokens, nodes and acceptance, depth by depth."""
    outcomes = []
    for grow in (True, False):
        engine, watch = engine_of(path, selector=selector, captured=captured, running=3)
        if not grow:
            engine.proposer.grown = lambda rows, limit: None  # type: ignore[method-assign]
        sequences = [engine.add(r) for r in some()[:3]]
        while not engine.is_idle:
            engine.step()
            engine.states.check()
        assert bool(watch.grown) == grow
        assert all(made.nodes == 16 for made in watch.grown)
        outcomes.append(
            [
                (s.tokens, s.draft.nodes, s.draft.offered, s.draft.accepted, s.draft.rounds)
                for s in sequences
            ]
        )
        if captured:
            assert engine.graphs.captured
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("tree", ["chain", "tau"])
def test_every_shape_says_what_plain_decoding_says(path: Path, tree: str) -> None:
    plain = [run(make_engine(path, ops=SLOW), [r])[0] for r in some()[:3]]
    engine, watch = engine_of(path, tree, running=3)
    assert run(engine, some()[:3]) == plain
    assert watch.grown
    assert watch.hosts < watch.asked


def test_a_tree_that_the_context_has_no_room_for_is_the_hosts(path: Path) -> None:
    """Up to the last position: the device's tree is left where the host's can be cut."""
    request = Request(prompt=tuple(range(5, 35)), params=SamplingParams(ignore_eos=True), seed=1)
    plain = run(make_engine(path, ops=SLOW, max_ctx=64), [request])[0]
    engine, watch = engine_of(path, max_ctx=64)
    assert run(engine, [request])[0] == plain
    assert watch.grown
    assert watch.hosts


def test_a_row_that_takes_no_drafts_leaves_the_rest_to_the_host(path: Path) -> None:
    requests = [
        Request(prompt=(5, 6, 7), params=GREEDY, seed=1),
        Request(prompt=(8, 9), params=GREEDY, seed=2, speculate=False),
    ]
    plain = [run(make_engine(path, ops=SLOW), [r])[0] for r in requests]
    engine, watch = engine_of(path)
    assert run(engine, requests) == plain
    assert watch.hosts
    assert not watch.grown


@pytest.mark.parametrize("selector", [False, True])
def test_adaptive_trees_are_sized_before_their_scores_are_seen(path: Path, selector: bool) -> None:
    """Node for node the best of the calibrated scores; the host looks first where it knows nothing yet."""
    request = Request(prompt=(5, 6, 7), params=replace(GREEDY, max_tokens=40), seed=1)
    plain = run(make_engine(path, ops=SLOW), [request])[0]
    engine, watch = engine_of(path, "adaptive", selector=selector)
    policy = engine.proposer.policy  # type: ignore[attr-defined]
    policy.calibration._shift = np.linspace(-1.0, 1.5, 15) + np.arange(8)[:, None] / 10
    policy.calibration.update = lambda: None  # else a tree and its reading may see different maps
    policy._error = 100.0  # drafts of random weights are not worth it
    widths = cycle((0, 2, 5, 12, 9))
    policy.nodes = lambda sequences, slots: next(widths)
    grew, sizes = policy.grew, []

    def compared(roots: list[int], scores: list[DraftScores], nodes: int, context: int) -> None:
        (made,) = watch.made
        growth = policy._start(roots[0], scores[0])
        assert growth.proposal(growth.grown(nodes)) == made
        sizes.append(nodes)
        grew(roots, scores, nodes, context)
        assert policy._expected == pytest.approx(1 + np.exp(growth.weights[1:nodes]).sum())

    policy.grew = compared
    assert run(engine, [request])[0] == plain
    assert len(sizes) > 5
    assert set(sizes) == {2, 5, 12, 9}
    assert watch.hosts


def test_adaptive_trees_of_several_sequences(path: Path) -> None:
    plain = [run(make_engine(path, ops=SLOW), [r])[0] for r in some()[:3]]
    engine, watch = engine_of(path, "adaptive", running=3)
    policy = engine.proposer.policy  # type: ignore[attr-defined]
    policy._error = 100.0
    widths = cycle((0, 2, 9, 5))
    policy.nodes = lambda sequences, slots: next(widths)
    assert run(engine, some()[:3]) == plain
    assert len(watch.grown) > 3


def test_an_adaptive_width_follows_what_was_worth_it() -> None:
    cost = CostModel()
    cost.profile([(1, 0, 1.0), (8, 0, 1.1), (32, 0, 1.3)], [(1, 1, 0.1)])
    policy = Policy(Settings(max_slots=6, max_nodes=16, max_rows=20), cost)
    assert policy.nodes(1, 6) == 0, "nothing is known"
    sharp = np.log(np.array([[0.9, 0.05, 0.03]] * 6, np.float32))
    flat = np.log(np.array([[0.05, 0.04, 0.03]] * 6, np.float32))
    tokens = np.arange(18, dtype=np.int32).reshape(6, 3)
    (first,) = policy.trees([1], [DraftScores(tokens=tokens, logp=sharp)])
    policy._drafted = 1
    assert policy.nodes(1, 6) == len(first.tokens) > 6
    assert policy.nodes(2, 6) <= 10, "rows share what a step holds"
    for _ in range(30):
        policy.grew([1], [DraftScores(tokens=tokens, logp=flat)], policy.nodes(1, 6) or 2)
    assert policy.nodes(1, 6) <= 4
    assert policy._expected < 2.0
    policy._drafted = FULL
    assert policy.nodes(1, 6) == 0, "now and then the host looks first"


def test_trees_set_out_before_the_device_is_given_their_verification(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the host would wait for both, and the device for the host."""
    engine, _, _ = growing(path)
    order: list[str] = []

    def noted(name: str, work: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            order.append(name)
            return work(*args, **more)

        return call

    monkeypatch.setattr(Grown, "send", noted("send", Grown.send))
    monkeypatch.setattr(Grown, "read", noted("read", Grown.read))
    monkeypatch.setattr(engine.graphs, "forward", noted("forward", engine.graphs.forward))
    engine.step()
    engine.step()
    assert order == ["forward", "read", "send"] * 2


@pytest.mark.parametrize("tree", ["bushy", "adaptive"])
@pytest.mark.parametrize("sound", [0, 1])
def test_a_damaged_draft_spoils_no_text(path: Path, tree: str, sound: int) -> None:
    """Slots of no numbers, the first among them or not, with somebody watching the rounds."""
    request = Request(prompt=(5, 6, 7), params=GREEDY, seed=1)
    plain = run(make_engine(path, ops=SLOW), [request])[0]
    engine, watch = engine_of(path, tree)
    proposer, rounds = engine.proposer, []
    assert isinstance(proposer, Speculator)
    proposer.on_round = rounds.append
    proposer.policy._error = 100.0
    if tree == "adaptive":
        proposer.policy.nodes = lambda sequences, slots: 6  # type: ignore[method-assign]
    work = proposer.drafter._run  # type: ignore[attr-defined]

    def damaged(*args: object) -> torch.Tensor:
        hidden = work(*args).clone()
        hidden[sound:] = torch.nan
        return hidden

    proposer.drafter._run = damaged  # type: ignore[attr-defined]
    assert run(engine, [request])[0] == plain
    assert watch.grown
    assert rounds


def test_without_memory_for_a_trees_way_the_round_drafts_as_ever(path: Path) -> None:
    plain = run(make_engine(path, ops=SLOW), [Request(prompt=(5, 6, 7), params=GREEDY, seed=1)])[0]
    engine, watch, sequence = growing(path)

    def scarce(self: Grown) -> None:
        raise torch.OutOfMemoryError("none left")

    taken = len(watch.grown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grown, "send", scarce)
        engine.step()  # with what was begun before
        engine.step()
    assert len(watch.grown) == taken + 1
    assert watch.hosts == 1
    while not engine.is_idle:
        engine.step()
    assert sequence.generated == plain


def test_a_failing_read_ends_the_step_and_nothing_else(path: Path) -> None:
    """Out of memory between the forward and its trees: one request fails, the next is served."""
    plain = run(make_engine(path, ops=SLOW), [Request(prompt=(8, 9), params=GREEDY, seed=2)])[0]
    engine, _, first = growing(path)

    def scarce(self: Grown) -> object:
        raise torch.OutOfMemoryError("none left")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grown, "read", scarce)
        (result,) = engine.step()
    assert result.error is not None
    assert first.finish == "error"
    engine.states.check()
    assert run(engine, [Request(prompt=(8, 9), params=GREEDY, seed=2)])[0] == plain


@pytest.mark.parametrize("slots", [1, 2, 5, 8, 15])
def test_settled_is_settle_on_a_device(slots: int) -> None:
    dice = np.random.default_rng(slots)
    width, top_k = 6, 4
    pair = dice.normal(size=(2, slots, width, width)).astype(np.float32)
    pair[:, 0] = pair[:, 0, :1]
    tokens = np.stack([dice.permutation(50)[:width] for _ in range(2 * slots)])
    tokens = tokens.reshape(2, slots, width).astype(np.int32)
    made = settled(torch.from_numpy(tokens), torch.from_numpy(pair), top_k)
    for r in range(2):
        want: DraftScores = settle(tokens[r], pair[r], top_k)
        assert want.pair is not None
        assert np.array_equal(made[0][r].numpy(), want.tokens)
        assert np.array_equal(made[1][r].numpy(), want.logp)
        assert np.array_equal(made[2][r].numpy(), want.pair)
