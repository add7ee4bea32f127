"""A norm made together with the sum before it: the same bits, and only where it is what is asked for."""

import pytest
import torch

from pydflash.kernels.triton import flow, pointwise
from pydflash.kernels.triton.weights import packed_of
from tests.backends import large
from tests.kernels.triton.test_products import made

Tensor = torch.Tensor
EPS = 1e-6


@pytest.mark.parametrize("rows", [1, 5])
def test_norm_with_the_sum(device: torch.device, rows: int) -> None:
    weight, _ = made(device, ["Q8_0"], 96, 700)
    counts = packed_of(weight).slot_counts.clone()
    weight.bias = torch.randn(700, device=device)
    parts = torch.randn(3, rows, 700, device=device)
    counts.fill_(3)
    x = torch.randn(rows, 700, device=device)
    scale = torch.rand(700, device=device)
    want = x.clone()
    pointwise.finish(parts, counts, residual=want, bias=weight.bias, out=want)
    for _ in range(2):  # the counters are as they were found
        got = x.clone()
        normed = pointwise.finish_norm(parts, counts, got, weight.bias, scale, EPS, 768)
        assert torch.equal(got, want)
        assert torch.equal(normed, pointwise.norm(want, scale, EPS, 768))


def test_many_wide_rows_again_and_again(device: torch.device) -> None:
    """Whichever program of a row is done last: on a GPU they race."""
    N, rows, rounds = (5120, 64, 200) if large(device) else (1100, 3, 1)
    weight, _ = made(device, ["Q8_0"], 96, N)
    parts = torch.randn(2, rows, N, device=device)
    counts = packed_of(weight).slot_counts.clone().fill_(2)
    scale = torch.rand(N, device=device)
    start = torch.randn(rows, N, device=device)
    want = start.clone()
    pointwise.finish(parts, counts, residual=want, bias=None, out=want)
    normed = pointwise.norm(want, scale, EPS, N + -N % 128)
    for _ in range(rounds):
        got = start.clone()
        found = pointwise.finish_norm(parts, counts, got, None, scale, EPS, N + -N % 128)
        assert torch.equal(got, want)
        assert torch.equal(found, normed)


def test_more_rows_than_one_launch_takes(device: torch.device) -> None:
    weight, _ = made(device, ["Q8_0"], 96, 64)
    rows = pointwise.MOST_JOINT + 1
    parts = torch.randn(packed_of(weight).slots, rows, 64, device=device)
    scale = torch.rand(64, device=device)
    for _ in range(2):
        x = torch.randn(rows, 64, device=device)
        flow.add(parts, weight, x)
        assert torch.equal(flow.norm(x, scale, EPS, 128), pointwise.norm(x, scale, EPS, 128))


def test_what_follows_is_learned(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, _ = made(device, ["Q8_0"], 96, 64)
    parts = torch.randn(packed_of(weight).slots, 2, 64, device=device)
    first, other = torch.rand(64, device=device), torch.rand(64, device=device)
    made_apart = []
    norm = pointwise.norm

    def counted(*args: object) -> Tensor:
        made_apart.append(args)
        return norm(*args)

    monkeypatch.setattr(pointwise, "norm", counted)

    def added() -> Tensor:
        x = torch.randn(2, 64, device=device)
        flow.add(parts, weight, x)
        return x

    def asked(x: Tensor, scale: Tensor, apart: bool) -> None:
        made_apart.clear()
        assert torch.equal(flow.norm(x, scale, EPS, 128), norm(x, scale, EPS, 128))
        assert bool(made_apart) == apart

    asked(added(), first, apart=True)
    asked(added(), first, apart=False)
    x = added()
    asked(x, other, apart=True)  # another norm
    asked(x, other, apart=True)  # of what is no longer the latest sum
    x = added()
    x.mul_(2)
    asked(x, other, apart=True)  # of what has changed since
    asked(added(), other, apart=False)
    added()
    asked(torch.randn(2, 64, device=device), other, apart=True)
