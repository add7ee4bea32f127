"""PromptLookup: what followed earlier occurrences of the end, whatever happens to the list."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from pydflash.draft import lookup
from pydflash.draft.base import DraftRow, DraftScores
from pydflash.draft.lookup import PromptLookup
from pydflash.spec.ddtree import build_tree


def score(tokens: Sequence[int], *, slots: int = 6, top_k: int = 4) -> DraftScores:
    return PromptLookup().score([DraftRow(tokens=tokens)], slots, top_k)[0]


def best(scores: DraftScores) -> list[int]:
    """The chain of best candidates."""
    return list(build_tree(0, scores, scores.slots, top_k=1).tokens[1:])


def test_a_repeated_passage_is_copied() -> None:
    passage = list(range(10, 30))
    assert best(score([*passage, 1, 2, *passage[:5]], slots=8)) == passage[5:13]


def test_a_new_end_drafts_nothing() -> None:
    for tokens in ([], [7], [7, 7], [1, 2, 3, 4, 5]):
        assert score(tokens).slots == 0
    assert score([1, 2, 3, 1, 2], slots=0).slots == 0


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 9, 8, 3, 4, 60, 9, 7, 1, 2, 3, 4]
    got = score(tokens)
    assert best(got)[0] == 50
    assert got.tokens[0, :2].tolist() == [50, 60]


def test_the_later_of_equal_matches_wins_and_both_are_candidates() -> None:
    got = score([1, 2, 3, 50, 51, 0, 1, 2, 3, 60, 61, 9, 1, 2, 3], slots=2)
    assert got.tokens.tolist() == [[60, 50], [61, 51]]
    assert got.pair is not None
    assert np.isneginf([got.pair[1, 0, 1], got.pair[1, 1, 0]]).all()
    tree = build_tree(3, got, 10, top_k=4)
    assert sorted(zip(tree.parents, tree.tokens, strict=True)) == [
        (-1, 3),
        (0, 50),
        (0, 60),
        (1, 61),
        (3, 51),
    ]


def test_a_match_that_reaches_the_end_is_a_period() -> None:
    assert best(score([5, 6, 7, 5, 6, 7, 5, 6], slots=7)) == [7, 5, 6, 7, 5, 6, 7]
    assert best(score([4, 4, 4, 4], slots=5)) == [4] * 5


def test_scores_keep_the_contract() -> None:
    dice = random.Random(4)
    seen = 0
    for _ in range(60):
        tokens = [dice.randrange(4) for _ in range(dice.randrange(2, 80))]
        got = score(tokens, slots=5, top_k=3)
        if not got.slots:
            continue
        seen += 1
        assert got.pair is not None
        slots, k = got.tokens.shape
        assert slots == 5
        assert 1 <= k <= 3
        assert got.pair.shape == (slots, k, k)
        assert (got.tokens.dtype, got.logp.dtype, got.pair.dtype) == ("int32", "float32", "float32")
        assert all(len(set(row)) == k for row in got.tokens.tolist())
        assert (np.exp(got.pair).sum(-1) <= 1.0).all()
        assert (got.pair[0] == got.pair[0, 0]).all()
        np.testing.assert_array_equal(got.logp, got.pair[:, 0])
        assert (got.logp[:, :-1] >= got.logp[:, 1:]).all()
    assert seen > 40


def test_longer_matches_claim_more() -> None:
    first = [float(score([*range(20), 99, *range(n)]).logp[0, 0]) for n in (2, 3, 5, 9)]
    assert first == sorted(first)
    assert first[0] < first[-1]


def test_an_incremental_index_equals_a_new_one() -> None:
    dice = random.Random(1)
    tokens = [dice.randrange(5) for _ in range(20)]
    drafter = PromptLookup()
    for _ in range(60):
        tokens += [dice.randrange(5) for _ in range(dice.randrange(1, 5))]
        got = drafter.score([DraftRow(tokens=tokens)], 6, 4)[0]
        new = score(list(tokens))
        np.testing.assert_array_equal(got.tokens, new.tokens)
        np.testing.assert_array_equal(got.logp, new.logp)


def test_a_list_that_shrank_or_changed_is_read_again() -> None:
    drafter = PromptLookup()
    tokens = [1, 2, 3, 4, 5, 1, 2, 3]
    assert best(drafter.score([DraftRow(tokens=tokens)], 2, 2)[0]) == [4, 5]
    del tokens[5:]
    assert drafter.score([DraftRow(tokens=tokens)], 2, 2)[0].slots == 0
    tokens[:] = [9, 8, 7, 6, 9, 8, 3, 3, 9, 8]
    got = drafter.score([DraftRow(tokens=tokens)], 2, 2)[0]
    np.testing.assert_array_equal(got.tokens, score(list(tokens), slots=2, top_k=2).tokens)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "SEQUENCES", 3)
    monkeypatch.setattr(lookup, "TOKENS", 100)
    drafter = PromptLookup()
    dice = random.Random(2)
    texts = [[dice.randrange(3) for _ in range(40)] for _ in range(8)]
    for _ in range(30):
        drafter.score([DraftRow(tokens=t) for t in texts], 4, 2)
        for text in texts:
            text += [dice.randrange(3) for _ in range(9)]
    assert len(drafter._indices) == 3
    for index in drafter._indices.values():
        assert len(index._places) <= 100 * len(lookup.GRAMS)
        assert all(len(at) <= lookup.KEPT for at in index._places.values())
        assert index.start > 0


def test_a_round_reads_new_tokens_only() -> None:
    class Counted(list[int]):
        reads = 0

        def __getitem__(self, at: int | slice) -> int | list[int]:  # type: ignore[override]
            Counted.reads += 1
            return super().__getitem__(at)

    dice = random.Random(3)
    tokens = Counted(dice.randrange(1000) for _ in range(20000))
    drafter = PromptLookup()
    drafter.score([DraftRow(tokens=tokens)], 8, 4)
    Counted.reads = 0
    tokens += [5, 6, 7]
    drafter.score([DraftRow(tokens=tokens)], 8, 4)
    assert Counted.reads < 1500
