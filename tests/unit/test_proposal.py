"""Proposal: only trees in topological order exist."""

import pytest

from pydflash.errors import EngineError
from pydflash.spec.proposal import Proposal


@pytest.mark.parametrize(
    ("parents", "depth", "sentence"),
    [
        ((-1, 2, 1), (0, 1, 2), "node 1 .* its own ancestor: parents form a cycle"),
        ((-1, 1, 0), (0, 1, 1), "node 1 .* cycle"),
        ((-1, 2, 0), (0, 2, 1), "node 1 .* before its parent 2"),
        ((-1, 3, 0), (0, 1, 1), "no node 3"),
        ((-1, -1, 0), (0, 0, 1), "no node -1"),
        ((0, 0, 1), (0, 1, 2), "its root"),
        ((-1, 0, 1), (0, 1, 1), "depth 1 under a parent of depth 1"),
        ((-1, 0), (0, 1), "3 tokens with 2 parents"),
    ],
)
def test_what_is_not_a_tree_is_refused(
    parents: tuple[int, ...], depth: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(EngineError, match=sentence):
        Proposal((5, 6, 7), parents, depth)


def test_a_proposal_has_a_root() -> None:
    with pytest.raises(EngineError, match="there is a root"):
        Proposal((), (), ())


def test_chain_and_root_are_trees() -> None:
    assert Proposal.root(5) == Proposal.chain([5])
    assert Proposal.chain([5, 6, 7]).path(2) == [0, 1, 2]
    twins = Proposal((5, 6, 7, 7, 7), (-1, 0, 0, 0, 1), (0, 1, 1, 1, 2))
    assert twins.children() == {(0, 6): 1, (0, 7): 2, (1, 7): 4}
