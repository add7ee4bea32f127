"""Draft trees on tensors: grown best first, and written into a step. The specification.

Weights are sums in float64, in the order in which `spec.ddtree.Growth` adds; of equals, what was found first.
"""

import math
from collections.abc import Callable, Sequence

import torch

from pydflash.kernels.ops import Guesses, StepBatch, Trees

Tensor = torch.Tensor
Row = Sequence[tuple[int, float]]  # candidates below one parent and their log-probabilities


def grow_trees(
    guesses: Guesses, budgets: Tensor, nodes: int, top_k: int, chain: bool, tau: Tensor | None
) -> Trees:
    """See `OpTable.grow_trees`."""
    grown = []
    for r, budget in enumerate(budgets.tolist()):
        rows = _rows(guesses, r, top_k)
        floor = -math.inf
        if tau is not None:
            floor = rows(0, 0, True)[0][1] - max(float(tau), 0.0)
        tokens = guesses.tokens[r].tolist()
        grown.append(_grow(rows, tokens, min(budget, nodes - 1), chain, floor))
    device = guesses.tokens.device

    def table(at: int, first: Sequence[float], kind: torch.dtype, blank: int) -> Tensor:
        lines = [
            [first[r], *(node[at] for node in tree), *[blank] * (nodes - 1 - len(tree))]
            for r, tree in enumerate(grown)
        ]
        return torch.tensor(lines, dtype=kind, device=device)

    count = len(grown)
    return Trees(
        tokens=table(0, guesses.roots.tolist(), torch.int32, 0),
        parents=table(1, [-1] * count, torch.int32, -1),
        depth=table(2, [0] * count, torch.int32, 0),
        weights=table(3, [0.0] * count, torch.float64, 0),
        counts=torch.tensor([1 + len(t) for t in grown], dtype=torch.int32, device=device),
    )


def plant(trees: Trees, batch: StepBatch) -> None:
    """See `OpTable.plant`."""
    rows, nodes = trees.parents.shape
    parents, depth = trees.parents.tolist(), trees.depth.tolist()
    ancestors = batch.ancestors
    assert ancestors is not None
    assert batch.parents is not None
    own = slice(0, rows * nodes)
    batch.tokens[own] = trees.tokens.view(-1)
    batch.positions[own] = (batch.base[:rows, None] + trees.depth).view(-1)
    ancestors[own] = -1
    for r in range(rows):
        for node in range(nodes):
            at, up = node, parents[r][node]
            batch.parents[r * nodes + node] = -1 if up < 0 else r * nodes + up
            while at >= 0:
                ancestors[r * nodes + node, depth[r][at]] = batch.write_slots[r * nodes + at]
                at = parents[r][at]


def _rows(guesses: Guesses, r: int, top_k: int) -> Callable[[int, int, bool], Row]:
    """What may stand in a slot below a parent that is a candidate, and whether on the best path."""
    if guesses.pair is not None:
        pair = guesses.pair[r].nan_to_num(nan=-math.inf).sort(dim=-1, descending=True, stable=True)
        logps, ids = pair.values.tolist(), pair.indices.tolist()

        def conditional(slot: int, candidate: int, on: bool) -> Row:
            return list(zip(ids[slot][candidate], logps[slot][candidate], strict=True))[:top_k]

        return conditional
    assert guesses.logp is not None
    best = guesses.logp[r].tolist()
    rest = best if guesses.off is None else guesses.off[r].tolist()

    def marginal(slot: int, candidate: int, on: bool) -> Row:
        return list(enumerate((best if on else rest)[slot]))[:top_k]

    return marginal


def _grow(
    rows: Callable[[int, int, bool], Row],
    tokens: list[list[int]],
    budget: int,
    chain: bool,
    floor: float,
) -> list[tuple[int, int, int, float]]:
    """(token, parent, depth, weight) of every node besides the root."""
    out: list[tuple[int, int, int, float]] = []
    # (weight, parent, slot, row, place in it, whether on the best path), in the order of discovery
    open_: list[tuple[float, int, int, Row, int, bool]] = []

    def offer(weight: float, parent: int, slot: int, row: Row, at: int, on: bool) -> None:
        if weight > -math.inf:
            open_.append((weight, parent, slot, row, at, on))

    def add(weight: float, parent: int, slot: int, row: Row, at: int, on: bool) -> None:
        out.append((tokens[slot][row[at][0]], parent, slot + 1, weight))
        if at + 1 < len(row):
            offer(weight - row[at][1] + row[at + 1][1], parent, slot, row, at + 1, on)

    def descend(weight: float, slot: int, candidate: int, on: bool) -> None:
        if slot < len(tokens):
            row = rows(slot, candidate, on)
            offer(weight + row[0][1], len(out), slot, row, 0, on)

    weight, candidate = 0.0, 0
    for slot in range(min(budget, len(tokens)) if chain else 0):
        row = rows(slot, candidate, True)
        if weight + row[0][1] == -math.inf or weight + row[0][1] < floor:
            break
        weight, candidate = weight + row[0][1], row[0][0]
        add(weight, slot, slot, row, 0, True)
    descend(weight, len(out), candidate, True)
    while len(out) < budget and open_:
        best = max(range(len(open_)), key=lambda i: open_[i][0])  # the first of the largest
        weight, parent, slot, row, at, on = open_[best]
        if weight < floor:
            break
        del open_[best]
        add(weight, parent, slot, row, at, on)
        descend(weight, slot + 1, row[at][0], on and at == 0)
    return out
