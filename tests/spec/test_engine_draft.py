"""Drafting changes speed, never text: every drafter, tree and architecture against plain decoding."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.draft.base import Context, DraftRow, DraftScores, Started
from pydflash.draft.config import DraftConfig, SelectorConfig
from pydflash.draft.dflash import DFlash
from pydflash.draft.lookup import PromptLookup
from pydflash.engine.engine import Engine
from pydflash.engine.request import Request
from pydflash.kernels.ops import PAGE_SIZE, OpTable
from pydflash.kernels.record import Recorder
from pydflash.models.base import Model
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from pydflash.sampling.params import SamplingParams
from pydflash.spec.cost import CostModel
from pydflash.spec.policy import Policy, Settings
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Proposer
from pydflash.spec.speculator import Speculator
from pydflash.state.ring import RingStore
from tests.backends import ON_GPU
from tests.spec.test_engine_exact import Speculate, _count_preemptions, make_engine, requests, run
from tests.tiny.draft import tiny_config, tiny_draft
from tests.tiny.gguf import tiny_gguf

ARCHS = ("llama", "qwen3", "qwen35", "qwen35moe")
TREES = {
    "chain": Settings(mode="chain", max_slots=5, max_nodes=6),
    "one node": Settings(mode="tree", budget=1, max_slots=5, max_nodes=2),
    "bushy": Settings(mode="tree", budget=15, max_slots=3, max_nodes=16, top_k=5),
    "tall": Settings(mode="tree", budget=7, max_slots=7, max_nodes=8, top_k=2),
    "tau": Settings(mode="tree", budget=15, max_slots=5, max_nodes=16, tau=1.0),
    "adaptive": Settings(max_slots=7, max_nodes=12),
}


@pytest.fixture(params=ARCHS, scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("target") / "tiny.gguf", request.param)


def some() -> list[Request]:
    """Greedy, sampled, with penalties, a least length and a bias."""
    return [r for i, r in enumerate(requests()) if i in (0, 2, 4, 6, 7)]


@pytest.fixture(scope="module")
def plain(path: Path) -> list[list[int]]:
    return [run(make_engine(path), [r])[0] for r in some()]


class Scripted:
    """Knows every answer, and tells it as badly as it is asked to."""

    name = "scripted"
    slots = 7
    taps = ()

    def __init__(self, known: list[list[int]], kind: str) -> None:
        self.known = known
        self.kind = kind
        self.dice = random.Random(5)

    def catch_up(self, contexts: Sequence[Context]) -> None:
        pass

    def score(self, rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        return [self._score(list(row.tokens), slots, top_k) for row in rows]

    def start(
        self, rows: Sequence[DraftRow], slots: int, top_k: int, *, guess: bool = False
    ) -> Started | None:
        return None

    def _score(self, tokens: list[int], slots: int, top_k: int) -> DraftScores:
        truth = next((w[len(tokens) :] for w in self.known if w[: len(tokens)] == tokens), [])
        table = []
        for slot in range(slots):
            here = self.dice.sample(range(3, 300), min(top_k, 4))
            right = slot < len(truth) and self.kind != "random"
            if self.kind == "until 2":
                right = right and slot < 2
            if right and truth[slot] not in here:
                here[min(1, len(here) - 1) if self.kind == "wrong first" else 0] = truth[slot]
            table.append(here)
        logp = np.log(np.array([[0.5, 0.2, 0.15, 0.1]] * slots, np.float32)[:, : len(table[0])])
        return DraftScores(tokens=np.array(table, np.int32), logp=logp)


def speculating(drafter: object, settings: Settings, *, grow: bool = False) -> Speculate:
    """`grow`: trees may be grown where the drafter runs."""

    def build(model: Model, ops: OpTable, running: int) -> tuple[Proposer, RingStore | None]:
        cost = CostModel()
        cost.profile([(1, 0, 1.0), (2, 0, 1.1), (8, 0, 1.6), (32, 0, 4.0)], [(1, 1, 0.1)])
        policy = Policy(settings, cost)
        return Speculator(drafter, policy, ops if grow else None), None  # type: ignore[arg-type]

    return build


def network(
    config: DraftConfig, settings: Settings, window: int = 64, record: Recorder | None = None
) -> Speculate:
    """A random DFlash drafter over the model's own taps."""
    tensors = {name: _stored(name, t) for name, t in tiny_draft(config, seed=3).items()}

    def build(model: Model, ops: OpTable, running: int) -> tuple[Proposer, RingStore | None]:
        drafter = DFlash(
            config,
            tensors.get,
            ops,
            token_embd=model.token_embd,
            output=model.output,
            max_positions=256,
            record=record,
        )
        grow = record is not None or ON_GPU
        proposer, _ = speculating(drafter, settings, grow=grow)(model, ops, running)
        return proposer, drafter.open_store(2 * running, window)

    return build


def _stored(name: str, values: torch.Tensor) -> QuantTensor:
    form = FORMATS["I64" if values.dtype == torch.int64 else "F32"]
    data = values.contiguous().view(torch.uint8)
    shape = tuple(values.shape)
    return QuantTensor(name=name, data=data.view(*shape[:-1], -1), format=form, shape=shape)


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("random", "bushy"),
        ("right", "chain"),
        ("right", "adaptive"),
        ("until 2", "tall"),
        ("until 2", "one node"),
        ("wrong first", "bushy"),
        ("wrong first", "tau"),
    ],
)
def test_any_drafts_in_any_tree(path: Path, plain: list[list[int]], kind: str, tree: str) -> None:
    asked = some()
    known = [[*r.prompt, *said] for r, said in zip(asked, plain, strict=True)]
    engine = make_engine(path, pages=8, speculate=speculating(Scripted(known, kind), TREES[tree]))
    preempted = _count_preemptions(engine)
    dice = random.Random(len(tree))
    assert run(engine, asked, [dice.randrange(20) for _ in asked]) == plain
    if tree == "bushy":
        assert preempted, "the pool was meant to be too small"


@pytest.mark.parametrize("tree", ["chain", "bushy", "adaptive"])
@pytest.mark.parametrize("selector", [False, True])
def test_a_network_drafts(path: Path, plain: list[list[int]], tree: str, selector: bool) -> None:
    extra = {"selector": SelectorConfig(rank=8, top_k=4)} if selector else {}
    config = tiny_config(block_size=6, **extra)
    engine = make_engine(path, pages=14, speculate=network(config, TREES[tree]))
    assert run(engine, some(), [0, 0, 3, 5, 20]) == plain


def test_lookups_draft(path: Path, plain: list[list[int]]) -> None:
    engine = make_engine(path, pages=14, speculate=speculating(PromptLookup(), TREES["bushy"]))
    assert run(engine, some(), [0, 0, 3, 5, 20]) == plain


def test_right_drafts_save_steps(path: Path, plain: list[list[int]]) -> None:
    request = some()[0]
    known = [[*request.prompt, *plain[0]]]
    engine = make_engine(path, speculate=speculating(Scripted(known, "right"), TREES["chain"]))
    sequence = engine.add(request)
    steps = 0
    while not engine.is_idle:
        engine.step()
        steps += 1
    stats = sequence.draft
    assert stats.rounds < len(plain[0]) / 3
    assert stats.tokens == len(plain[0]) - 1, "the prompt gave the first token"
    assert stats.accepted_nodes == stats.tokens - stats.rounds
    assert steps <= stats.rounds + 4


def test_a_request_may_do_without(path: Path, plain: list[list[int]]) -> None:
    request = some()[0]
    known = [[*request.prompt, *plain[0]]]
    engine = make_engine(path, speculate=speculating(Scripted(known, "right"), TREES["chain"]))
    asked = Request(
        prompt=request.prompt, params=request.params, seed=request.seed, speculate=False
    )
    sequence = engine.add(asked)
    while not engine.is_idle:
        engine.step()
    assert sequence.generated == plain[0]
    assert sequence.draft.rounds == 0


def test_proposers_hear_of_the_rows_beside(path: Path, plain: list[list[int]]) -> None:
    asked = some()[:3]
    known = [[*r.prompt, *said] for r, said in zip(asked, plain[:3], strict=True)]
    engine = make_engine(path, speculate=speculating(Scripted(known, "right"), TREES["chain"]))
    heard = []
    propose = engine.proposer.propose

    def listen(rows: Sequence[DraftRow], beside: int = 0) -> list[Proposal]:
        heard.append((len(rows), beside))
        return propose(rows, beside)

    engine.proposer.propose = listen  # type: ignore[method-assign]
    mixed = [asked[0], replace(asked[1], speculate=False), replace(asked[2], speculate=False)]
    assert run(engine, mixed) == plain[:3]
    assert (1, 2) in heard


def test_a_conversation_keeps_its_drafter_context(path: Path) -> None:
    """The second turn drafts from the whole text, and says what a fresh engine says."""
    config = tiny_config(block_size=6)
    engine = make_engine(path, running=2, speculate=network(config, TREES["chain"], window=128))
    params = SamplingParams(max_tokens=10, ignore_eos=True)
    prompt = list(range(10, 60))
    first = Request(prompt=tuple(prompt), params=params, seed=1)
    said = run(engine, [first])[0]
    again = Request(prompt=(*prompt, *said, 70, 71), params=params, seed=1)
    sequence = engine.add(again)
    engine.step()
    context = engine.states.of(sequence).draft
    assert context is not None
    assert context.first == 0
    assert context.end == engine.states.of(sequence).length
    while not engine.is_idle:
        engine.step()
    assert sequence.cached == len(prompt) + len(said) - 1
    cold = make_engine(path, running=2)
    assert run(cold, [Request(prompt=again.prompt, params=params, seed=1)])[0] == sequence.generated


def test_contexts_run_out_without_harm(path: Path, plain: list[list[int]]) -> None:
    """More sequences than rings: some go without a drafter."""

    def build(model: Model, ops: OpTable, running: int) -> tuple[Proposer, RingStore | None]:
        return network(tiny_config(block_size=6), TREES["bushy"])(model, ops, 1)

    engine: Engine = make_engine(path, pages=64, speculate=build)
    assert run(engine, some()) == plain


def test_context_follows_the_text(path: Path) -> None:
    """What the drafter remembers after drafting is what plain decoding would have left there."""
    kept = []
    for settings in (TREES["bushy"], Settings(max_slots=0, max_nodes=1)):
        engine = make_engine(path, speculate=network(tiny_config(block_size=6), settings, 128))
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        sequence = engine.add(Request(prompt=tuple(range(10, 50)), params=params, seed=1))
        while len(sequence.tokens) < 66:
            engine.step()
        context, rings = engine.states.of(sequence).draft, engine.states.rings
        assert context is not None
        assert rings is not None
        engine.proposer.drafter.catch_up([context])  # type: ignore[attr-defined]
        assert context.first == 0
        assert context.length >= 65
        places = [context.place(p) for p in range(65)]
        at = ([p // PAGE_SIZE for p in places], slice(None), slice(None))
        lanes = [p % PAGE_SIZE for p in places]
        for layer in rings.kv.layers:
            kept.append(layer.k[at[0], :, :, lanes])
            kept.append(layer.v[at[0], :, lanes])
    half = len(kept) // 2
    for a, b in zip(kept[:half], kept[half:], strict=True):
        assert torch.equal(a, b)


def test_without_memory_rounds_go_without_drafts(path: Path, plain: list[list[int]]) -> None:
    """The text is the same; drafts come back when there is memory."""
    request = some()[0]
    known = [[*request.prompt, *plain[0]]]
    drafter = Scripted(known, "right")
    score, calls = drafter.score, 0

    def scarce(rows: Sequence[DraftRow], slots: int, top_k: int) -> list[DraftScores]:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise torch.OutOfMemoryError("none left")
        return score(rows, slots, top_k)

    drafter.score = scarce  # type: ignore[method-assign]
    engine = make_engine(path, speculate=speculating(drafter, TREES["chain"]))
    sequence = engine.add(request)
    while not engine.is_idle:
        engine.step()
    assert sequence.generated == plain[0]
    assert calls >= 4
    assert sequence.draft.accepted_nodes > 0
