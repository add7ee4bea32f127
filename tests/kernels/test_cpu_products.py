"""CPU products against float64 over the official dequantisation, and bit for bit with themselves."""

import pytest
import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.ops import build_ops
from pydflash.kernels.cpu.weights import FORMATS
from pydflash.kernels.ops import OpTable, Weight
from pydflash.quant.formats import FORMATS as ALL_FORMATS
from pydflash.quant.tensor import QuantTensor, ShapeError
from tests.kernels.cpu_cases import dequantized, random_weight, spans_of

Tensor = torch.Tensor

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ops() -> OpTable:
    return build_ops(CPU, 2)


@pytest.fixture(autouse=True)
def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an op forgets to write is NaN."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> Tensor:
        out: Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        return out.fill_(float("nan")) if out.is_floating_point() else out.fill_(0xA5)

    monkeypatch.setattr(torch, "empty", poisoned)


def cols_of(name: str) -> int:
    """An awkward K: odd for plain numbers, a few blocks otherwise."""
    block = ALL_FORMATS[name].block
    return {1: 333, 32: 9 * 32, 256: 3 * 256}[block]


def linear(ops: OpTable, x: Tensor, weight: Weight) -> Tensor:
    return ops.linear(x, weight, spans_of(x.shape[0]))


def bound(x: Tensor, w: Tensor) -> Tensor:
    """What f32 sums of K terms may be off by, [T, N]."""
    return (x.abs().double() @ w.abs().double().T) * 2.0**-24 * 30 + 1e-30


@pytest.mark.parametrize("name", FORMATS)
def test_embed_is_the_official_dequantisation(ops: OpTable, name: str) -> None:
    tensor = random_weight(name, 37, cols_of(name))
    weight = ops.prepare([tensor])
    tokens = torch.tensor([36, 0, 15, 16, 31, 32, 0], dtype=torch.int32)
    assert torch.equal(ops.embed(weight, tokens), dequantized(tensor)[tokens.long()])
    assert weight.nbytes == tensor.nbytes // 37 * 48


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [5, 64, 77])
def test_linear_matches_float64(ops: OpTable, name: str, rows: int) -> None:
    tensor = random_weight(name, rows, cols_of(name), seed=rows)
    weight = ops.prepare([tensor])
    w = dequantized(tensor)
    for tokens in (1, 2, 7, 65):
        x = torch.randn(tokens, w.shape[1])
        error = (linear(ops, x, weight).double() - x.double() @ w.double().T).abs()
        assert torch.all(error <= bound(x, w))


@pytest.mark.parametrize("name", FORMATS)
def test_linear_row_and_thread_invariance(ops: OpTable, name: str) -> None:
    weight = ops.prepare([random_weight(name, 470, 2 * cols_of(name))])
    x = torch.randn(256, weight.cols)
    full = linear(ops, x, weight)
    single = build_ops(CPU, 1)
    for table in (ops, single):
        for start, stop in (
            (0, 256),
            (0, 1),
            (1, 3),
            (2, 5),
            (0, 4),
            (9, 14),
            (3, 9),
            (1, 9),
            (5, 21),
            (100, 223),
        ):
            assert torch.equal(linear(table, x[start:stop].contiguous(), weight), full[start:stop])


@pytest.mark.parametrize("name", FORMATS)
def test_linear_isa_invariance(ops: OpTable, name: str) -> None:
    library = cpu_library.load()
    assert library is not None
    weight = ops.prepare([random_weight(name, 90, cols_of(name))])
    x = torch.randn(9, weight.cols)
    best = [linear(ops, x, weight), linear(ops, x[:1], weight)]
    try:
        cpu_library.select(library, "portable")
        portable = [linear(ops, x, weight), linear(ops, x[:1], weight)]
    finally:
        cpu_library.select(library)
    assert torch.equal(best[0], portable[0])
    assert torch.equal(best[1], portable[1])


@pytest.mark.parametrize("tokens", [258, 259, 530])
def test_more_rows_than_share_a_decoded_stretch(ops: OpTable, tokens: int) -> None:
    """Blocks of 256 rows or a little more, columns that are no multiple of a stretch; plain and gated."""
    weight = ops.prepare([random_weight("Q5_1", 45, 320), random_weight("Q4_1", 45, 320)])
    x, norm = torch.randn(tokens, 320), torch.rand(320)
    full = linear(ops, x, weight)
    gated = ops.norm_gated(x, norm, 1e-6, weight, "silu", spans_of(tokens))
    for start in range(0, tokens, 100):
        part = x[start : start + 100].contiguous()
        got = ops.norm_gated(part, norm, 1e-6, weight, "silu", spans_of(part.shape[0]))
        assert torch.equal(linear(ops, part, weight), full[start : start + 100])
        assert torch.equal(got, gated[start : start + 100])


def test_merged_weight_of_mixed_formats_equals_its_parts(ops: OpTable) -> None:
    parts = [
        random_weight("Q4_K", 70, 512),
        random_weight("Q6_K", 33, 512),
        random_weight("F16", 16, 512),
    ]
    bias = torch.randn(119)
    weight = ops.prepare(parts, bias)
    assert weight.parts == (70, 33, 16)
    assert weight.formats == ("Q4_K", "Q6_K", "F16")
    for tokens in (1, 3, 20):
        x = torch.randn(tokens, 512)
        apart = torch.cat([linear(ops, x, ops.prepare([part])) for part in parts], 1)
        assert torch.equal(linear(ops, x, weight), apart + bias)
    rows = torch.tensor([118, 70, 69, 103], dtype=torch.int32)
    want = torch.cat([dequantized(part) for part in parts])[rows.long()]
    assert torch.equal(ops.embed(weight, rows), want)


@pytest.mark.parametrize("tokens", [1, 2, 8, 9, 40])
def test_norm_linear(ops: OpTable, tokens: int) -> None:
    weight = ops.prepare([random_weight("Q4_1", 100, 320)])
    x, norm = torch.randn(tokens, 320), torch.rand(320)
    got = ops.norm_linear(x, norm, 1e-5, weight, spans_of(tokens))
    normed = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    w = dequantized(random_weight("Q4_1", 100, 320))
    assert torch.all((got - normed @ w.double().T).abs() <= 2 * bound(normed, w))
    alone = [ops.norm_linear(x[t : t + 1], norm, 1e-5, weight, spans_of(1)) for t in range(tokens)]
    assert torch.equal(torch.cat(alone), got)


@pytest.mark.parametrize("tokens", [1, 3, 30])
def test_linear_add_overwrites_the_residual(ops: OpTable, tokens: int) -> None:
    weight = ops.prepare([random_weight("Q8_0", 45, 96)])
    x, residual = torch.randn(tokens, 96), torch.randn(tokens, 45)
    want = residual + linear(ops, x, weight)
    assert torch.equal(ops.linear_add(x, weight, residual, spans_of(tokens)), want)


@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("half", [48, 50, 7, 400])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 11])
def test_norm_gated(ops: OpTable, act: str, half: int, merged: bool, tokens: int) -> None:
    """Gate and up as two tensors of different formats, or as one tensor whose halves may share a panel."""
    if merged:
        parts = [random_weight("Q4_0", 2 * half, 64)]
    else:
        parts = [random_weight("Q4_0", half, 64), random_weight("Q5_1", half, 64)]
    bias = torch.randn(2 * half)
    weight = ops.prepare(parts, bias)
    x, norm = torch.randn(tokens, 64) * 3, torch.rand(64)
    got = ops.norm_gated(x, norm, 1e-6, weight, act, spans_of(tokens))
    both = ops.norm_linear(x, norm, 1e-6, weight, spans_of(tokens))
    gate, up = both.double().split(half, 1)
    approximate = torch.nn.functional.gelu(gate, approximate="tanh")
    want = (torch.nn.functional.silu(gate) if act == "silu" else approximate) * up
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    alone = [
        ops.norm_gated(x[t : t + 1], norm, 1e-6, weight, act, spans_of(1)) for t in range(tokens)
    ]
    assert torch.equal(torch.cat(alone), got)


def test_norm_gated_far_from_zero(ops: OpTable) -> None:
    eye = torch.zeros(2, 1)
    eye[0], eye[1] = 1, 1
    tensor = QuantTensor(
        name="gate", data=eye.view(torch.uint8), format=ALL_FORMATS["F32"], shape=(2, 1)
    )
    weight = ops.prepare([tensor.rows(0, 1), tensor.rows(1, 2)])
    for value, want in ((200.0, 200.0 * 200.0), (-200.0, 0.0)):
        norm = torch.tensor([abs(value)])
        got = ops.norm_gated(torch.tensor([[value]]), norm, 0.0, weight, "silu", spans_of(1))
        assert abs(got.item() - want) <= 1e-3


def test_no_tokens(ops: OpTable) -> None:
    weight = ops.prepare([random_weight("Q4_0", 20, 64)])
    assert linear(ops, torch.zeros(0, 64), weight).shape == (0, 20)
    assert ops.embed(weight, torch.zeros(0, dtype=torch.int32)).shape == (0, 64)


def test_prepare_column_slices(ops: OpTable) -> None:
    tensor = random_weight("Q4_0", 20, 128)
    left, right = tensor.split_cols(2)
    x = torch.randn(3, 128)
    halves = [
        linear(ops, x[:, i * 64 : (i + 1) * 64], ops.prepare([p]))
        for i, p in enumerate((left, right))
    ]
    torch.testing.assert_close(sum(halves), linear(ops, x, ops.prepare([tensor])))


def test_prepare_refuses_by_name(ops: OpTable) -> None:
    fmt = ALL_FORMATS["IQ2_XS"]
    tensor = QuantTensor(
        name="blk.7.ffn_down.weight",
        data=torch.zeros((4, fmt.block_bytes), dtype=torch.uint8),
        format=fmt,
        shape=(4, 256),
    )
    with pytest.raises(UnsupportedError, match=r"blk\.7\.ffn_down\.weight is IQ2_XS"):
        ops.prepare([tensor])
    with pytest.raises(ShapeError, match="columns"):
        ops.prepare([random_weight("F32", 4, 8), random_weight("F32", 4, 9)])
    weight = ops.prepare([random_weight("F32", 4, 8)])
    with pytest.raises(ValueError, match="product of"):
        linear(ops, torch.zeros(1, 9), weight)
    with pytest.raises(ValueError, match="token ids"):
        ops.embed(weight, torch.tensor([4], dtype=torch.int32))
    with pytest.raises(UnsupportedError, match="relu"):
        ops.norm_gated(torch.zeros(1, 8), torch.ones(8), 1e-6, weight, "relu", spans_of(1))
