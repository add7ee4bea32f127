"""The best of each row, by reference and CPU kernels."""

import pytest
import torch

from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.ops import OpTable
from pydflash.kernels.ref.ops import build_ops as build_reference

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["ref", "cpu"])
def ops(request: pytest.FixtureRequest) -> OpTable:
    return build_reference(CPU) if request.param == "ref" else build_ops(CPU, 2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (2, 64), (7, 1000), (5, 16384), (9, 49155)])
@pytest.mark.parametrize("k", [1, 2, 8, 33])
def test_best_and_total(ops: OpTable, shape: tuple[int, int], k: int) -> None:
    logits = torch.randn(shape) * 5
    values, ids, total = ops.top(logits, k)
    want = logits.topk(min(k, shape[1]))
    assert torch.equal(values, want.values)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, want.indices)
    torch.testing.assert_close(total, logits.double().logsumexp(-1).float(), rtol=1e-6, atol=1e-5)


def test_equals_in_order_of_id(ops: OpTable) -> None:
    logits = torch.zeros(2, 300)
    logits[1, [7, 200, 299]] = 1
    _, ids, _ = ops.top(logits, 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4], [7, 200, 299, 0, 1]]


def test_extreme_numbers(ops: OpTable) -> None:
    logits = torch.full((2, 100), float("-inf"))
    logits[0, 40], logits[1] = 3e38, -3e38
    values, ids, total = ops.top(logits, 2)
    assert ids[0, 0] == 40
    assert values[0].tolist() == [logits[0, 40].item(), float("-inf")]
    assert total.tolist() == pytest.approx([3e38, -3e38])


def test_stray_numbers_are_never_chosen() -> None:
    logits = torch.randn(3, 200)
    logits[:, ::3] = float("nan")
    values, ids, _ = build_ops(CPU, 1).top(logits, 20)
    assert bool(values.isfinite().all())
    assert torch.equal(logits.gather(1, ids), values)


def test_instruction_sets_agree() -> None:
    library = cpu_library.load()
    assert library is not None
    ops = build_ops(CPU, 2)
    logits = torch.randn(6, 50001)
    best = ops.top(logits, 12)
    try:
        cpu_library.select(library, "portable")
        portable = ops.top(logits, 12)
    finally:
        cpu_library.select(library)
    for ours, theirs in zip(best, portable, strict=True):
        assert torch.equal(ours, theirs)
