"""The drafter network: every kind against float64; what rings, batches and lost features may not change."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pydflash.draft.base import DraftRow, DraftScores
from pydflash.draft.config import DraftConfig
from pydflash.draft.dflash import DFlash
from pydflash.errors import CheckpointError
from pydflash.kernels.ops import OpTable
from pydflash.kernels.record import Again, Recorder
from pydflash.state.ring import RingContext
from tests.backends import BACKENDS, FAST, ON_GPU
from tests.draft.build import assemble, give, ops_of
from tests.draft.naive import draft_logits
from tests.tiny.draft import CASES, tiny_draft

Tensor = torch.Tensor
BOUND = 2e-2 if ON_GPU else 2e-4

EMBD = torch.randn(320, 64, generator=torch.Generator().manual_seed(5))
OUTPUT = torch.randn(320, 64, generator=torch.Generator().manual_seed(6)) / 4


@pytest.fixture(scope="module", params=BACKENDS)
def ops(request: pytest.FixtureRequest) -> OpTable:
    return ops_of(request.param)


def features_of(config: DraftConfig, count: int, seed: int = 7) -> Tensor:
    width = len(config.target_layers) * config.target_hidden
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def build(
    name: str, ops: OpTable, record: Recorder | None = None, **more: object
) -> tuple[DFlash, dict[str, Tensor]]:
    case = CASES[name]
    config = replace(case.config, **more)  # type: ignore[arg-type]
    tensors = tiny_draft(config, **case.options)
    made = assemble(config, ops, tensors, EMBD, OUTPUT, max_positions=600, record=record)
    return made, tensors


def opened(drafter: DFlash, window: int = 128) -> RingContext:
    context = drafter.open_store(1, window, "f32").open()
    assert context is not None
    return context


def row(position: int, anchor: int, context: RingContext | None) -> DraftRow:
    return DraftRow(tokens=[1] * position + [anchor], context=context)


def filled(drafter: DFlash, count: int, *, window: int = 128, seed: int = 7) -> RingContext:
    context = opened(drafter, window)
    give(context, 0, features_of(drafter.config, count, seed))
    return context


def same(a: Sequence[DraftScores], b: Sequence[DraftScores]) -> bool:
    """Bit for bit."""
    fields = ("tokens", "logp", "pair")
    pairs = [(getattr(x, f), getattr(y, f)) for x, y in zip(a, b, strict=True) for f in fields]
    return all((x is None and y is None) or np.array_equal(x, y) for x, y in pairs)


def truth(
    drafter: DFlash,
    tensors: dict[str, Tensor],
    features: Tensor,
    first: int,
    anchor: int,
    slots: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits and normed hidden states in float64, and the target id of each draft id."""
    c = drafter.config
    ids = torch.arange(c.vocab)
    if c.draft_vocab is not None:
        ids = torch.arange(c.draft_vocab) + tensors["d2t"]
    logits, hidden = draft_logits(
        c,
        tensors,
        features=features,
        first=first,
        anchor=anchor,
        length=slots if c.from_anchor else slots + 1,
        embd=EMBD,
        output=tensors.get("output.weight", OUTPUT[ids]),
    )
    return logits, hidden, ids


PLAIN = [
    n for n, c in CASES.items() if not (c.config.selector or c.config.markov or c.config.domino)
]


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("slots", [3, 1])
def test_plain_probabilities(ops: OpTable, name: str, slots: int) -> None:
    """All of the vocabulary, with every optional part; a short block, too."""
    drafter, tensors = build(name, ops)
    features = features_of(drafter.config, 40)
    context = filled(drafter, 40)
    (scores,) = drafter.score([row(40, 9, context)], slots, 400)
    logits, _, ids = truth(drafter, tensors, features, 0, 9, slots)
    want = torch.full((slots, 320), float("nan"), dtype=torch.float64)
    want[:, ids] = logits.log_softmax(-1)
    got = torch.from_numpy(scores.logp).double()
    expected = want.gather(1, torch.from_numpy(scores.tokens).long())
    assert scores.tokens.shape == (slots, len(ids))
    assert torch.nn.functional.cosine_similarity(got, expected).min() > (
        0.9999 if ON_GPU else 0.999999
    )
    torch.testing.assert_close(got, expected, rtol=0, atol=BOUND)


def corrected(
    name: str,
    drafter: DFlash,
    w: dict[str, Tensor],
    logits: Tensor,
    hidden: Tensor,
    path: list[int],
) -> Tensor:
    """A conditional head's logits of every token, float64 [S, Vd], after the tokens of `path`."""
    if drafter.config.markov is not None:
        first, second = w["dflash.dspark.markov.w1"], w["dflash.dspark.markov.w2"]
        return logits + first[path].double() @ second.double().T
    if drafter.config.selector is not None:
        at = "dflash.selector."
        projected = hidden @ w[at + "hproj.weight"].double().T
        return (
            logits + (w[at + "pred_cb"][path].double() * projected) @ w[at + "succ_cb"].double().T
        )
    assert drafter.config.domino is not None
    at, c = "dflash.domino.", drafter.config.domino
    biases = at + "gru.bias_ih" in w
    gru = torch.nn.GRU(64, c.hidden, bias=biases, dtype=torch.float64)
    for theirs in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if biases else ())):
        gru.get_parameter(theirs + "_l0").data = w[f"{at}gru.{theirs}"].double()
    start = w.get(at + "start", torch.zeros(c.hidden)).double()
    with torch.no_grad():
        states = gru(EMBD[path].double()[:, None], start[None, None])[0][:, 0]
    inner = torch.cat((hidden, states), 1) @ w[at + "head.w1"].double().T
    inner = torch.nn.functional.silu(inner + w.get(at + "head.b1", torch.zeros(1)))
    bias = inner @ w[at + "head.w2"].double().T + w.get(at + "head.b2", torch.zeros(1))
    bias[: c.prefix] = 0
    return logits + bias


CONDITIONAL = [n for n in CASES if n not in PLAIN]


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditional_heads(ops: OpTable, name: str) -> None:
    """Along the path a head finds most likely, the odds between its candidates are the exact ones."""
    drafter, tensors = build(name, ops)
    features = features_of(drafter.config, 21)
    (scores,) = drafter.score([row(21, 30, filled(drafter, 21))], drafter.slots, 6)
    logits, hidden, ids = truth(drafter, tensors, features, 0, 30, drafter.slots)
    path = [30, *scores.tokens[:-1, 0].tolist()]
    full = corrected(name, drafter, tensors, logits, hidden, path)
    by_token = torch.full((drafter.slots, 320), float("-inf"), dtype=torch.float64)
    by_token[:, ids] = full
    want = by_token.gather(1, torch.from_numpy(scores.tokens).long())
    got = torch.from_numpy(scores.logp).double()
    torch.testing.assert_close(got - got[:, :1], want - want[:, :1], rtol=0, atol=BOUND)
    assert bool((got.exp().sum(-1) <= 1 + 1e-5).all())
    assert all(len(set(slot)) == len(slot) for slot in scores.tokens.tolist())
    if drafter.config.domino is None:
        assert scores.pair is not None
        assert np.array_equal(scores.pair[:, 0], scores.logp)
        assert np.array_equal(scores.pair[0], np.repeat(scores.pair[0, :1], len(got[0]), 0))
        # and after another token of slot 0 than the best one
        other = [30, int(scores.tokens[0, 1]), *path[2:]]
        full = corrected(name, drafter, tensors, logits, hidden, other)
        by_token[:, ids] = full
        want = by_token[1, torch.from_numpy(scores.tokens[1]).long()]
        pair = torch.from_numpy(scores.pair[1, 1]).double()
        torch.testing.assert_close(pair - pair[0], want - want[0], rtol=0, atol=BOUND)


@pytest.mark.parametrize("name", ["v1", "swa", "dflash2", "dspark", "domino", "channel-gates"])
def test_a_row_does_not_know_its_company(ops: OpTable, name: str) -> None:
    """Sequences of different length drafted together: the bits of each drafted alone."""
    drafter, _ = build(name, ops)
    store = drafter.open_store(3, 64, "f16")
    known = {length: features_of(drafter.config, length, seed=length) for length in (5, 60, 33)}

    def contexts() -> list[RingContext]:
        made = []
        for features in known.values():
            context = store.open()
            assert context is not None
            give(context, 0, features)
            made.append(context)
        return made

    together = contexts()
    rows = [row(length, 11 + length, c) for length, c in zip(known, together, strict=True)]
    at_once = drafter.score(rows, 2, 4)
    for context in together:
        context.close()
    alone = contexts()
    one_by_one = [
        drafter.score([row(length, 11 + length, c)], 2, 4)[0]
        for length, c in zip(known, alone, strict=True)
    ]
    assert same(at_once, one_by_one)


@pytest.mark.parametrize("name", ["v1", "swa", "gates"])
def test_features_in_chunks_or_at_once(name: str) -> None:
    """The CPU kernels store the same bits however a prompt was cut, so the drafts are equal."""
    drafter, _ = build(name, ops_of(FAST))
    at_once = filled(drafter, 90)
    chunked = opened(drafter)
    features = features_of(drafter.config, 90)
    for start in range(0, 90, 7):
        give(chunked, start, features[start : start + 7])
        if start % 3 == 0:
            drafter.catch_up([chunked])
    assert same(
        drafter.score([row(90, 3, at_once)], 3, 8), drafter.score([row(90, 3, chunked)], 3, 8)
    )


@pytest.mark.parametrize("name", ["v1", "swa"])
def test_rounds_around_the_ring(ops: OpTable, name: str) -> None:
    """Past the ring's end a context sees its last positions and no others, at their own places."""
    drafter, tensors = build(name, ops)
    context = opened(drafter, 40)
    features = features_of(drafter.config, 400)
    at = 0
    for count in (40, 3, 1, 4, 60, 2, 100, 64, 31, 5):
        give(context, at, features[at : at + count])
        at += count
        (scores,) = drafter.score([row(at, 8, context)], 3, 320)
        first = context.first
        assert at + 4 - context.store.capacity <= first <= max(0, at - 40)
        logits, _, _ = truth(drafter, tensors, features[first:at], first, 8, 3)
        want = logits.log_softmax(-1).gather(1, torch.from_numpy(scores.tokens).long())
        torch.testing.assert_close(
            torch.from_numpy(scores.logp).double(), want, rtol=0, atol=1.5 * BOUND
        )


def test_a_restart_hides_what_was_before(ops: OpTable) -> None:
    """After a gap in the features nothing of the old ones is seen, at the positions of the new ones."""
    drafter, tensors = build("v1", ops)
    context = filled(drafter, 50)
    drafter.catch_up([context])
    features = features_of(drafter.config, 6, seed=3)
    give(context, 57, features)
    assert (context.first, context.num_pending) == (57, 6)
    (scores,) = drafter.score([row(63, 8, context)], 3, 320)
    logits, _, _ = truth(drafter, tensors, features, 57, 8, 3)
    want = logits.log_softmax(-1).gather(1, torch.from_numpy(scores.tokens).long())
    torch.testing.assert_close(
        torch.from_numpy(scores.logp).double(), want, rtol=0, atol=1.5 * BOUND
    )


def test_a_context_without_anything_still_drafts(ops: OpTable) -> None:
    """An empty context, one that is behind, and none at all."""
    drafter, tensors = build("v1", ops)
    empty, behind = opened(drafter), filled(drafter, 10)
    scores = drafter.score([row(0, 8, empty), row(5, 8, None)], 3, 320)
    assert scores[1].slots == 0
    logits, _, _ = truth(drafter, tensors, features_of(drafter.config, 0), 0, 8, 3)
    want = logits.log_softmax(-1).gather(1, torch.from_numpy(scores[0].tokens).long())
    torch.testing.assert_close(
        torch.from_numpy(scores[0].logp).double(), want, rtol=0, atol=1.5 * BOUND
    )
    (late,) = drafter.score([row(14, 8, behind)], 3, 4)
    (there,) = drafter.score([row(10, 8, behind)], 3, 4)
    assert same([late], [there])


def test_a_rolled_back_block_leaves_no_trace(ops: OpTable) -> None:
    """Drafting writes beyond the context; what comes later overwrites it."""
    drafter, _ = build("v1", ops)
    features = features_of(drafter.config, 44)
    straight, winding = opened(drafter), opened(drafter)
    give(straight, 0, features)
    give(winding, 0, features[:40])
    drafter.score([row(40, 200, winding)], 3, 4)
    give(winding, 40, features_of(drafter.config, 3, seed=1))
    drafter.score([row(43, 201, winding)], 3, 4)
    winding.rollback(41)
    winding.rollback(40)
    for at in range(40, 44):
        give(winding, at, features[at : at + 1])
        drafter.catch_up([winding])
    assert same(
        drafter.score([row(44, 8, straight)], 3, 4), drafter.score([row(44, 8, winding)], 3, 4)
    )


def test_rows_lent_by_the_target(ops: OpTable) -> None:
    """A reduced vocabulary without an output of its own takes the target's rows."""
    case = CASES["reduced"]
    tensors = tiny_draft(case.config)
    ids = torch.arange(96) + tensors["d2t"]
    own = {**tensors, "output.weight": OUTPUT[ids]}
    lent = {name: t for name, t in tensors.items() if name != "output.weight"}
    made = [assemble(case.config, ops, t, EMBD, OUTPUT, max_positions=100) for t in (own, lent)]
    first, second = (d.score([row(20, 8, filled(d, 20))], 3, 8) for d in made)
    assert same(first, second)
    assert set(first[0].tokens.flatten().tolist()) <= set(ids.tolist())


def test_the_end_of_the_text_is_not_passed(ops: OpTable) -> None:
    drafter, _ = build("v1", ops)
    context = opened(drafter)
    give(context, 600, features_of(drafter.config, 1))
    assert drafter.score([row(601, 8, context)], 3, 4)[0].slots == 0
    assert drafter.score([row(600, 8, opened(drafter))], 0, 4)[0].slots == 0


def test_another_models_drafter_is_refused(ops: OpTable) -> None:
    case = CASES["v1"]
    tensors = tiny_draft(case.config)
    with pytest.raises(CheckpointError, match="made for another model"):
        assemble(case.config, ops, tensors, EMBD[:, :32], OUTPUT, max_positions=100)
    missing = {n: t for n, t in tensors.items() if n != "blk.1.ffn_up.weight"}
    with pytest.raises(CheckpointError, match=r"no tensor blk\.1\.ffn_up\.weight"):
        assemble(case.config, ops, missing, EMBD, OUTPUT, max_positions=100)
    short = {**tensors, "output_norm.weight": torch.ones(63)}
    with pytest.raises(CheckpointError, match="configuration implies"):
        assemble(case.config, ops, short, EMBD, OUTPUT, max_positions=100)


@pytest.mark.parametrize("name", ["v1", "swa", "dflash2"])
def test_captured_rounds_draft_the_same(name: str, ops: OpTable) -> None:
    """Whatever comes after whatever in the same buffers: pieces of all sizes, one row and two."""
    eager, captured = build(name, ops)[0], build(name, ops, record=Again())[0]
    features = features_of(eager.config, 120)
    pairs = []
    for drafter in (eager, captured):
        store = drafter.open_store(2, 64, "f32")
        contexts = [store.open(), store.open()]
        scores = []
        at = [0, 0]
        for i, count in enumerate((3, 1, 40, 5, 2, 31, 17, 8)):
            which = i % 2
            context = contexts[which]
            assert context is not None
            give(context, at[which], features[at[which] : at[which] + count])
            at[which] += count
            if i == 5:  # both have something new
                give(contexts[0], at[0], features[at[0] : at[0] + 4])
                at[0] += 4
            rows = [row(at[r], 7 + i, contexts[r]) for r in ((which,) if i < 4 else (0, 1))]
            scores += drafter.score(rows, 3 if i % 3 else drafter.slots, 4)
        pairs.append(scores)
    assert same(*pairs)


def test_a_damaged_context_drafts_nothing(ops: OpTable) -> None:
    """Features that are no numbers spoil the drafts of one text, and no other's."""
    drafter = build("v1", ops)[0]
    store = drafter.open_store(2, 64, "f32")
    damaged, sound = store.open(), store.open()
    assert damaged is not None
    assert sound is not None
    features = features_of(drafter.config, 9)
    give(damaged, 0, torch.full_like(features, torch.nan))
    give(sound, 0, features)
    nothing, some = drafter.score([row(9, 8, damaged), row(9, 8, sound)], 3, 4)
    assert nothing.slots == 0
    assert same([some], drafter.score([row(9, 8, sound)], 3, 4))
