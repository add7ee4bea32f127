"""Trees on a device: node for node those of the host's builder, by Triton and by the reference."""

import numpy as np
import pytest
import torch

from pydflash.draft.base import DraftScores
from pydflash.engine.columns import StepShape, view
from pydflash.kernels.ops import Guesses, Trees
from pydflash.kernels.ref import calibrate as ref_calibrate
from pydflash.kernels.ref import tree as ref
from pydflash.kernels.triton import calibrate as fast_calibrate
from pydflash.kernels.triton import plant as fast_plant
from pydflash.kernels.triton import tree as fast
from pydflash.spec.calibration import LOW, Calibration
from pydflash.spec.ddtree import Growth, build_tree
from pydflash.spec.proposal import Proposal
from tests.backends import large

FORMS = {"triton": fast, "ref": ref}
TOP_K = 3


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> object:
    return FORMS[request.param]


def scores(slots: int, k: int, seed: int, *, pair: bool, ties: bool) -> DraftScores:
    dice = np.random.default_rng(seed)
    shape = (slots, k, k + 3) if pair else (slots, k + 3)
    logits = dice.normal(0, 1.5, shape)
    if pair:
        logits[0] = logits[0, :1]
    else:
        logits = np.sort(logits)[..., ::-1]
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    if ties:  # whole numbers of eighths add up without rounding: many paths weigh the same
        logp = np.minimum(np.round(logp * 2) / 2, -0.5)
        logp[..., -1] = -np.inf
    logp = logp[..., :k].astype(np.float32)
    tokens = np.stack([dice.permutation(50)[:k] for _ in range(slots)]).astype(np.int32)
    if pair:
        return DraftScores(tokens=tokens, logp=logp[:, 0], pair=logp)
    return DraftScores(tokens=tokens, logp=logp)


def guesses(given: list[DraftScores], device: torch.device) -> Guesses:
    def stacked(arrays: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    pair = given[0].pair is not None
    return Guesses(
        roots=torch.arange(100, 100 + len(given), dtype=torch.int32, device=device),
        tokens=stacked([s.tokens for s in given]),
        logp=None if pair else stacked([s.logp for s in given]),
        pair=stacked([s.pair for s in given]) if pair else None,
    )


def proposals(trees: Trees) -> list[Proposal]:
    out = []
    for r, count in enumerate(trees.counts.tolist()):
        own = [t[r].tolist() for t in (trees.tokens, trees.parents, trees.depth)]
        assert all(set(x[count:]) <= {blank} for x, blank in zip(own, (0, -1, 0), strict=True))
        out.append(Proposal(*(tuple(x[:count]) for x in own)))
    return out


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("chain", [False, True])
def test_node_for_node_the_hosts_tree(
    form: object, device: torch.device, pair: bool, ties: bool, chain: bool
) -> None:
    seeds = 40 if large(device) else 3
    budgets = [*range(seeds)] if large(device) else [0, 1, 4, 9, 14][: seeds + 1]
    for tau in (None, 2.0):
        given = [scores(4, 5, i, pair=pair, ties=ties) for i in range(len(budgets))]
        trees = form.grow_trees(  # type: ignore[attr-defined]
            guesses(given, device),
            torch.tensor(budgets, dtype=torch.int32, device=device),
            max(budgets) + 1,
            TOP_K,
            chain,
            None if tau is None else torch.tensor([tau], dtype=torch.float64, device=device),
        )
        want = [
            build_tree(100 + i, s, budget, top_k=TOP_K, tau=tau, chain_seed=chain)
            for i, (s, budget) in enumerate(zip(given, budgets, strict=True))
        ]
        assert proposals(trees) == want


def test_scores_off_the_best_path_and_weights(form: object, device: torch.device) -> None:
    given = [scores(5, 4, i, pair=False, ties=False) for i in range(2)]
    off = [(s.logp * 1.5 - 0.25).astype(np.float32) for s in given]
    asked = guesses(given, device)
    asked = Guesses(
        roots=asked.roots,
        tokens=asked.tokens,
        logp=asked.logp,
        off=torch.from_numpy(np.stack(off)).to(device),
    )
    budgets = torch.tensor([12, 7], dtype=torch.int32, device=device)
    trees = form.grow_trees(asked, budgets, 20, 4, False, None)  # type: ignore[attr-defined]
    for r, budget in enumerate((12, 7)):
        growth = Growth(100 + r, given[r], top_k=4, off=off[r])
        while len(growth) <= budget:
            growth.take()
        assert proposals(trees)[r] == growth.proposal()
        assert trees.weights[r, : budget + 1].tolist() == growth.weights


def test_candidates_may_run_out(form: object, device: torch.device) -> None:
    given = [scores(2, 2, 0, pair=False, ties=False)]
    budgets = torch.tensor([12], dtype=torch.int32, device=device)
    trees = form.grow_trees(guesses(given, device), budgets, 13, 2, True, None)  # type: ignore[attr-defined]
    assert proposals(trees) == [build_tree(100, given[0], 12, top_k=2)]
    assert trees.counts.tolist() == [1 + 2 + 4]


def random_trees(rows: int, nodes: int, device: torch.device) -> Trees:
    """Trees with siblings that differ, some of them smaller than the table."""
    tokens, parents, depth, counts = [], [], [], []
    dice = np.random.default_rng(3)
    for r in range(rows):
        count = nodes - 3 * r
        up = [-1, *(int(dice.integers(max(0, n - 2), n)) for n in range(1, count))]
        deep = [0] * count
        word = [7] * count
        for n in range(1, count):
            deep[n] = deep[up[n]] + 1
            word[n] = sum(p == up[n] for p in up[:n])
        pad = nodes - count
        tokens.append(word + [0] * pad)
        parents.append(up + [-1] * pad)
        depth.append(deep + [0] * pad)
        counts.append(count)
    made = [torch.tensor(x, dtype=torch.int32, device=device) for x in (tokens, parents, depth)]
    return Trees(
        tokens=made[0],
        parents=made[1],
        depth=made[2],
        counts=torch.tensor(counts, dtype=torch.int32, device=device),
        weights=torch.zeros(rows, nodes, dtype=torch.float64, device=device),
    )


def test_planted_trees_are_what_the_host_would_have_sent(
    form: object, device: torch.device
) -> None:
    rows, nodes, more = 3, 17, 4
    trees = random_trees(rows, nodes, device)
    tokens, depths = rows * nodes + more, int(trees.depth.max()) + 3
    shape = StepShape(tokens=tokens, rows=rows + 1, pages=2, depth=depths, logits=tokens)
    flat = torch.full((sum(shape.sizes),), -7, dtype=torch.int32, device=device)
    batch = view(flat, shape, (), (), ())
    places = torch.randperm(1000)[:tokens].int().to(device)
    base = torch.tensor([5, 0, 700, 0], dtype=torch.int32, device=device)
    batch.write_slots.copy_(places)
    batch.base.copy_(base)
    before = flat.clone()
    (fast_plant if form is fast else ref).plant(trees, batch)
    assert batch.ancestors is not None
    assert batch.parents is not None
    for r, proposal in enumerate(proposals(trees)):
        first, blanks = r * nodes, nodes - len(proposal.tokens)
        own = slice(first, first + nodes)
        assert batch.tokens[own].tolist() == [*proposal.tokens, *[0] * blanks]
        depth = [*proposal.depth, *[0] * blanks]
        assert batch.positions[own].tolist() == [int(base[r]) + d for d in depth]
        parents = [p if p < 0 else first + p for p in proposal.parents]
        assert batch.parents[own].tolist() == [*parents, *[-1] * blanks]
        for n in range(nodes):
            path = proposal.path(n) if n < len(proposal.tokens) else [n]
            line = [int(places[first + p]) for p in path]
            assert batch.ancestors[first + n].tolist() == line + [-1] * (depths - len(line))
    after = view(flat, shape, (), (), ())
    untouched = view(before, shape, (), (), ())
    for name in ("tokens", "positions", "parents", "ancestors"):
        mine, old = getattr(after, name), getattr(untouched, name)
        assert torch.equal(mine[rows * nodes :], old[rows * nodes :])
        mine[: rows * nodes] = old[: rows * nodes]
    assert torch.equal(flat, before), "nothing else was written"


@pytest.mark.parametrize("form", [fast_calibrate, ref_calibrate])
def test_calibrated_scores(form: object, device: torch.device) -> None:
    learned = Calibration(3)
    dice = np.random.default_rng(0)
    for i in range(200):
        given = scores(5, 4, i, pair=False, ties=False)
        drawn = [int(s[0]) if dice.random() < 0.4 else 99 for s in given.tokens[:, :1]]
        learned.observe(given, drawn)
    learned._refresh()
    given = [scores(5, 6, i, pair=False, ties=i == 1) for i in range(3)]
    given[0].logp[0, 0], given[0].logp[2, 3] = -1e-7, -80.0
    totals = torch.randn(3, 5)
    values = torch.from_numpy(np.stack([s.logp for s in given])) + totals[..., None]
    values[2, 1, 2], values[2, 4] = torch.nan, torch.nan
    shift = torch.from_numpy(learned.shift)
    assert shift.abs().max() > 0.3
    got = form.calibrate(  # type: ignore[attr-defined]
        values.to(device), totals.to(device), shift.to(device), LOW
    )
    for r in range(3):
        logp = (values[r] - totals[r, :, None]).nan_to_num(nan=-torch.inf).numpy()
        on, off = learned.apply(DraftScores(tokens=given[r].tokens, logp=logp))
        assert off is not None
        np.testing.assert_allclose(got[0, r].cpu().numpy(), on.logp, rtol=2e-7)
        np.testing.assert_allclose(got[1, r].cpu().numpy(), off, rtol=2e-7)
