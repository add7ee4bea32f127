"""Trees written into a step: what the host would have sent with them, had it known them."""

import triton
import triton.language as tl

from pydflash.kernels.ops import StepBatch, Trees


@triton.jit
def plant_kernel(
    tree_tokens_ptr, tree_parents_ptr, tree_depth_ptr, base_ptr, places_ptr,
    tokens_ptr, positions_ptr, parents_ptr, ancestors_ptr, nodes, depths, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program a tree. A path is followed from every node up to the root, all nodes at once."""
    i_r = tl.program_id(0).to(tl.int64)
    first = i_r * nodes
    o = tl.arange(0, BLOCK)
    mask = o < nodes
    own = tl.load(tree_depth_ptr + first + o, mask=mask, other=0)
    parent = tl.load(tree_parents_ptr + first + o, mask=mask, other=-1)
    token = tl.load(tree_tokens_ptr + first + o, mask=mask, other=0)
    tl.store(tokens_ptr + first + o, token, mask=mask)
    tl.store(positions_ptr + first + o, tl.load(base_ptr + i_r) + own, mask=mask)
    tl.store(parents_ptr + first + o, tl.where(parent < 0, -1, parent + first), mask=mask)
    line = ancestors_ptr + (first + o) * depths
    deepest = tl.max(own)
    for depth in range(deepest + 1, depths):
        tl.store(line + depth, tl.full((BLOCK,), -1, tl.int32), mask=mask)
    at = o
    for step in range(deepest + 1):
        depth = deepest - step
        on = mask & (depth <= own)
        place = tl.load(places_ptr + first + at, mask=on, other=-1)
        tl.store(line + depth, place, mask=mask)
        above = tl.load(tree_parents_ptr + first + at, mask=on & (depth > 0), other=0)
        at = tl.where(on, above, at)


def plant(trees: Trees, batch: StepBatch) -> None:
    """See `OpTable.plant`."""
    R, nodes = trees.parents.shape
    assert batch.ancestors is not None
    plant_kernel[(R,)](
        trees.tokens,
        trees.parents,
        trees.depth,
        batch.base,
        batch.write_slots,
        batch.tokens,
        batch.positions,
        batch.parents,
        batch.ancestors,
        nodes,
        batch.ancestors.shape[1],
        triton.next_power_of_2(nodes),
        num_warps=1,
    )
