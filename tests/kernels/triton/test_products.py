"""Products by packed weights against decoded ones in float64, and that a row's bits are its own."""

import pytest
import torch

from pydflash.kernels.ops import RowKind, Span, Weight
from pydflash.kernels.ref.pointwise import activate, rms_norm
from pydflash.kernels.ref.quant import dequantize
from pydflash.kernels.triton import pointwise, prefill, products
from pydflash.kernels.triton.embed import embed
from pydflash.kernels.triton.layers import linear, linear_add, norm_gated, norm_linear
from pydflash.kernels.triton.pack import held_bytes
from pydflash.kernels.triton.products import Form
from pydflash.kernels.triton.weights import packed_of, prepare
from pydflash.quant.encode import encode
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from tests.kernels.triton.attention_cases import sum_rows_alone

Tensor = torch.Tensor

SUPER = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
PLAIN = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "F16", "BF16", "F32"]
BOUND = 1e-3
"""Relative error of a product: inputs are exact in f16, weights are rounded to it once or twice."""


def random_weight(rows: int, cols: int, name: str) -> QuantTensor:
    form = FORMATS[name]
    if name.startswith("IQ4"):  # read, never written: any codes with sane scales
        data = torch.randint(0, 256, (rows, form.row_bytes(cols)), dtype=torch.uint8)
        blocks = data.view(-1, form.block_bytes)
        scales = torch.rand(len(blocks), 1) * 1e-3 + 1e-4
        blocks[:, :2] = scales.half().view(torch.uint8)
    else:
        data = encode(torch.randn(rows, cols) * 0.05, form).view(rows, form.row_bytes(cols))
    return QuantTensor(name=name, data=data, format=form, shape=(rows, cols))


def made(device: torch.device, names: list[str], cols: int, rows: int) -> tuple[Weight, Tensor]:
    """A merged weight and its values f64."""
    parts = [random_weight(rows + 13 * i, cols, name) for i, name in enumerate(names)]
    values = torch.cat([dequantize(p) for p in parts]).double()
    return prepare(parts, device, None), values.to(device)


def inputs(device: torch.device, tokens: int, weight: Weight) -> Tensor:
    x = torch.randn(tokens, packed_of(weight).width, device=device).half()
    x[:, weight.cols :] = 0
    return x


def summed(x: Tensor, weight: Weight, form: Form | None = None) -> Tensor:
    packed = packed_of(weight)
    parts = products.product(x, packed, weight.rows, form)
    return pointwise.finish(parts, packed.slot_counts, residual=None, bias=None)


def error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


@pytest.mark.parametrize(
    ("names", "cols"),
    [
        *(([name], 512) for name in SUPER),
        *(([name], 160) for name in PLAIN),
        (["Q5_K", "Q4_K", "Q4_K"], 256),
        (["Q4_K", "Q6_K", "Q4_K"], 1280),
    ],
)
def test_exact_rows(device: torch.device, names: list[str], cols: int) -> None:
    weight, values = made(device, names, cols, 70)
    x = inputs(device, 5, weight)
    assert error(summed(x, weight), x[:, :cols].double() @ values.T) < BOUND


@pytest.mark.parametrize("names", [["Q4_K"], ["Q5_K", "Q6_K"], ["Q8_0"], ["F16"]])
def test_bits_do_not_depend_on_company(
    device: torch.device, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Hopper two kinds of matrix unit share the work by the number of rows, and agree."""
    sum_rows_alone(device, monkeypatch)
    weight, _ = made(device, names, 1536, 200)
    x = inputs(device, 40, weight)
    assert packed_of(weight).slots > 1
    whole = summed(x, weight)
    assert torch.equal(summed(x[7:8], weight), whole[7:8])
    for count in (1, 8, 9, 24, 33):
        assert torch.equal(summed(x[:count], weight), whole[:count])
    for form in (Form(64, 2, 4), Form(128, 3, 4), Form(64, 3, 2)):
        assert torch.equal(summed(x[:24], weight, form), whole[:24])
    many = torch.cat((x, x, x[:30]))  # 110: more than one program's tokens
    assert torch.equal(summed(many, weight)[80:], whole[:30])


@pytest.mark.parametrize(
    ("names", "cols"), [(["Q4_1"], 160), (["Q5_K", "Q2_K"], 256), (["Q6_K"], 256), (["BF16"], 40)]
)
def test_prompts(device: torch.device, names: list[str], cols: int) -> None:
    weight, values = made(device, names, cols, 70)
    x = inputs(device, 70, weight)
    got = prefill.product(x, packed_of(weight), weight.rows)[0]
    assert error(got, x[:, :cols].double() @ values.T) < BOUND


def test_a_large_weight_is_decoded_in_pieces(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, values = made(device, ["Q8_0"], 128, 150)
    x = inputs(device, 70, weight)
    monkeypatch.setattr(prefill, "_MOST_DECODED", 64 * 2 * 128)
    got = prefill.product(x, packed_of(weight), weight.rows)[0]
    assert error(got, x.double() @ values.T) < BOUND


def test_rows_near_nothing_stay_finite(device: torch.device) -> None:
    values = torch.cat((torch.full((1, 32), 1e-39), torch.zeros(1, 32), torch.full((1, 32), 1e38)))
    part = QuantTensor(
        name="F32", data=values.view(torch.uint8), format=FORMATS["F32"], shape=(3, 32)
    )
    tokens = torch.arange(3, dtype=torch.int32, device=device)
    got = embed(prepare([part], device, None), tokens).cpu()
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got, values, rtol=1e-3, atol=1e-38)


def test_embeddings(device: torch.device) -> None:
    tokens = torch.tensor([3, 0, 69], dtype=torch.int32, device=device)
    for name in (*SUPER, *PLAIN):
        weight, values = made(device, [name], 256, 70)
        assert error(embed(weight, tokens), values[tokens.long()]) < BOUND


def test_the_memory_plan_counts_what_is_held(device: torch.device) -> None:
    for name in (*SUPER, *PLAIN):
        weight, _ = made(device, [name], 512, 70)
        assert weight.nbytes == held_bytes(FORMATS[name], 70, 512)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_units_in_one_piece(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hopper's wide matrix units take them."""
    monkeypatch.setattr(products, "is_whole", lambda *_: True)
    weight, values = made(device, [name], 512, 70)
    x = inputs(device, 17, weight)
    assert error(summed(x, weight), x.double() @ values.T) < BOUND


def test_scales_beyond_f16_survive(device: torch.device) -> None:
    """A power of two for each tensor carries what its scales' products would lose in f16."""
    part = random_weight(64, 256, "Q4_K")
    blocks = part.data.view(-1, part.format.block_bytes)
    blocks[:, :4] = (blocks[:, :4].contiguous().view(torch.float16) * 2.0**-9).view(torch.uint8)
    want = dequantize(part).double().to(device)
    assert want.abs().max() < 2.0**-10
    got = embed(prepare([part], device, None), torch.arange(64, dtype=torch.int32, device=device))
    assert error(got, want) < BOUND


def test_fused(device: torch.device) -> None:
    weight, values = made(device, ["Q8_0", "Q8_0"], 96, 50)
    weight.bias = torch.randn(weight.rows, device=device)
    spans = (Span(0, 2, RowKind.EXACT), Span(2, 70, RowKind.PREFILL))
    x, norm = torch.randn(70, 96, device=device), torch.rand(96, device=device) + 0.5
    residual = torch.randn(70, weight.rows, device=device)
    want = x.double() @ values.T + weight.bias
    close = {"rtol": 2e-3, "atol": 2e-3}
    torch.testing.assert_close(linear(x, weight, spans).double(), want, **close)
    added = linear_add(x, weight, residual.clone(), spans)
    torch.testing.assert_close(added.double(), want + residual, **close)
    normed = rms_norm(x, norm, 1e-6).double() @ values.T + weight.bias
    got = norm_linear(x, norm, 1e-6, weight, spans)
    torch.testing.assert_close(got.double(), normed, **close)


@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_gated(device: torch.device, act: str) -> None:
    weight, values = made(device, ["Q8_0"], 96, 100)
    spans = (Span(0, 3, RowKind.EXACT),)
    x, norm = torch.randn(3, 96, device=device), torch.rand(96, device=device) + 0.5
    gate, up = (rms_norm(x, norm, 1e-6).double() @ values.T).chunk(2, -1)
    got = norm_gated(x, norm, 1e-6, weight, act, spans)
    torch.testing.assert_close(got.double(), activate(gate, up, act), rtol=5e-3, atol=5e-3)


def test_what_f16_cannot_hold_is_held_at_its_edge(device: torch.device) -> None:
    x = torch.tensor([[1e6, -1e6, 3.0]], device=device)
    assert pointwise.half(x, 128)[0, :3].tolist() == [65504.0, -65504.0, 3.0]
