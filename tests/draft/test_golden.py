"""The drafter network against what z-lab's own code (and speculators' heads) made of the same weights."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.draft.base import DraftRow, DraftScores
from pydflash.draft.dflash import DFlash
from tests.backends import BACKENDS, ON_GPU
from tests.draft.build import give, network, ops_of
from tests.draft.golden_cases import ANCHORS, CASES, Case, features

GOLDEN = Path(__file__).parents[1] / "golden"
BOUND = 2e-2 if ON_GPU else 2e-4
PAIRS = 8e-2 if ON_GPU else BOUND  # of three factors, each rounded to f16 there


def rounds(drafter: DFlash, case: Case, pieces: int, top_k: int) -> Iterator[DraftScores]:
    """Draft after each round's features, which arrive in `pieces` and are taken in with each or at once."""
    store = drafter.open_store(1, 128, "f32")
    context = store.open()
    assert context is not None
    known = torch.from_numpy(features(case))
    start = 0
    for count, anchor in zip(case.rounds, ANCHORS, strict=True):
        for part in torch.tensor_split(torch.arange(start, start + count), pieces):
            if len(part):
                give(context, int(part[0]), known[part])
            if pieces > 2:
                drafter.catch_up([context])
        start += count
        row = DraftRow(tokens=[0] * start + [anchor], context=context)
        yield drafter.score([row], drafter.slots, top_k)[0]


def golden(case: Case) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"dflash_{case.name}.npz") as file:
        return dict(file)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return torch.from_numpy(x).double().log_softmax(-1).numpy()


def close(got: np.ndarray, want: np.ndarray, bound: float = BOUND) -> None:
    a, b = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    assert a @ b / np.sqrt((a @ a) * (b @ b)) >= 0.9999
    assert np.abs(a - b).max() < bound


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("name", ["full", "mixed", "sliding", "narrow", "causal"])
def test_every_probability(name: str, pieces: int, backend: str) -> None:
    """Log-probabilities of the whole vocabulary, every slot of every round."""
    case = CASES[name]
    want = golden(case)["logits"]
    drafter = network(case, ops_of(backend))
    for r, scores in enumerate(rounds(drafter, case, pieces, case.vocab)):
        assert scores.tokens.shape == (case.block_size - 1, case.vocab)
        assert np.all(np.diff(scores.logp, axis=1) <= 0)
        close(scores.logp, np.take_along_axis(log_softmax(want[r]), scores.tokens, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pieces", [1, 4])
def test_the_pairwise_selector(pieces: int, backend: str) -> None:
    """DFlash2: every conditional probability among the candidates, and the path they give."""
    case = CASES["dflash2"]
    want = golden(case)
    drafter = network(case, ops_of(backend))
    assert drafter.name == "dflash2"
    for r, scores in enumerate(rounds(drafter, case, pieces, case.top_k)):
        tokens, pair = want["tokens"][r], want["pair"][r]
        assert scores.pair is not None
        for s in range(len(tokens)):
            at = [list(tokens[s]).index(t) for t in scores.tokens[s]]
            before = [list(tokens[s - 1]).index(t) for t in scores.tokens[s - 1]] if s else at
            close(scores.pair[s], pair[s][np.ix_(before, at)], PAIRS)
            assert np.array_equal(scores.logp[s], scores.pair[s][0])
        assert list(scores.tokens[:, 0]) == list(want["path"][r])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_markov_head(backend: str) -> None:
    """DSpark: odds between candidates along the greedy path are those of speculators' corrected logits."""
    case = CASES["dspark"]
    want = golden(case)
    drafter = network(case, ops_of(backend))
    assert drafter.slots == case.block_size
    for r, scores in enumerate(rounds(drafter, case, 1, 12)):
        corrected = want["corrected"][r]
        ours = np.take_along_axis(corrected, scores.tokens, 1)
        close(scores.logp - scores.logp[:, :1], ours - ours[:, :1])
        assert list(scores.tokens[:, 0]) == list(want["path"][r])
        assert scores.pair is not None
        assert np.allclose(scores.pair[:, 0], scores.logp)
        # the rest of the vocabulary counts, uncorrected: no candidate is more likely than in truth by much
        truth = np.take_along_axis(log_softmax(corrected), scores.tokens, 1)
        assert np.abs(scores.logp - truth).max() < 1.0
