"""`encode`: plain formats against the official quantiser, K formats against llama.cpp's recorded error."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.encode import WRITABLE, can_encode, encode
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from tests.oracles import kquant_golden

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE.parent / "golden" / "kquant_rmse.json").read_text())
PLAIN = ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "F32"]
SUPER = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def round_trip(x: torch.Tensor, name: str, importance: torch.Tensor | None = None) -> torch.Tensor:
    fmt = FORMATS[name]
    packed = encode(x, fmt, importance)
    return dequantize(QuantTensor(name="w", data=packed, format=fmt, shape=tuple(x.shape)))


def rmse(x: torch.Tensor, name: str, importance: torch.Tensor | None = None) -> float:
    weight = 1.0 if importance is None else importance.double()
    error = (round_trip(x, name, importance) - x).double()
    return float((weight * error**2).mean().sqrt())


def awkward() -> torch.Tensor:
    """Ordinary rows, and rows of zeros, of one value, of ties, of tiny, of huge and of one-sided numbers."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(12, 512, generator=rng) * 0.05
    x[1] = 0
    x[2] = 0.25
    x[3] = -0.25
    x[4] = torch.arange(512) % 16 - 7.5
    x[5] *= 1e-7
    x[6] *= 1e4
    x[7] = x[7].abs()
    x[8] = -x[8].abs() - 1
    x[9, ::2] = 0
    x[10] = 0
    x[10, 77] = 3.0
    return x


@pytest.mark.parametrize("name", PLAIN)
def test_encode_matches_the_official_quantiser(name: str) -> None:
    x = awkward()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = quants.quantize(x.numpy(), GGMLQuantizationType[name])
    assert np.array_equal(encode(x, FORMATS[name]).numpy(), expected.view(np.uint8))


@pytest.mark.parametrize("name", SUPER)
@pytest.mark.parametrize("tensor", list(GOLDEN["made"]))
def test_encode_errs_no_more_than_llama_cpp(name: str, tensor: str) -> None:
    x = torch.from_numpy(kquant_golden.made_tensors()[tensor])
    assert rmse(x, name) <= 1.02 * GOLDEN["made"][tensor][name]


@pytest.mark.parametrize("name", SUPER)
@pytest.mark.parametrize("tensor", list(GOLDEN["model_tensors"]))
def test_encode_errs_no_more_than_llama_cpp_on_a_model(name: str, tensor: str) -> None:
    record = GOLDEN["model_tensors"][tensor]
    x = torch.from_numpy(kquant_golden.decode_q4_1(base64.b64decode(record["q4_1"])))
    assert rmse(x, name) <= 1.02 * record[name]


@pytest.mark.parametrize(
    ("name", "bound"), list(zip(SUPER, (0.5, 0.25, 0.1, 0.05, 0.025), strict=True))
)
def test_encode_survives_awkward_rows(name: str, bound: float) -> None:
    x = awkward()
    error = (round_trip(x, name) - x).abs().amax(dim=1)
    # Row 5 lies below what a half-float scale can hold; it may only lose what it has.
    limit = bound * x.abs().amax(dim=1) + 1e-6
    assert not (error > limit).nonzero().tolist(), (error / limit).tolist()
    assert torch.equal(round_trip(x, name)[1], torch.zeros(512))


@pytest.mark.parametrize("name", SUPER)
def test_encode_uses_importance(name: str) -> None:
    rng = torch.Generator().manual_seed(9)
    x = torch.randn(16, 1024, generator=rng)
    importance = torch.rand(1024, generator=rng) ** 4 + 1e-3
    plain = (round_trip(x, name) - x).double()
    assert rmse(x, name, importance) < float((importance * plain**2).mean().sqrt())
    rows = importance.expand(16, -1)
    assert torch.equal(round_trip(x, name, rows), round_trip(x, name, importance))


@pytest.mark.parametrize("name", WRITABLE)
def test_encode_does_not_depend_on_chunks_or_strides(name: str) -> None:
    fmt = FORMATS[name]
    x = torch.randn(300, 256, generator=torch.Generator().manual_seed(1))
    whole = encode(x, fmt)  # several chunks
    assert whole.shape == (300, fmt.row_bytes(256))
    assert torch.equal(whole[253:259], encode(x[253:259], fmt))
    assert torch.equal(encode(x.t().contiguous().t(), fmt), whole)
    assert encode(x[:0], fmt).shape == (0, fmt.row_bytes(256))


def test_encode_refuses_what_it_cannot_store() -> None:
    x = torch.zeros(2, 256)
    with pytest.raises(UnsupportedError, match="cannot write IQ2_XS"):
        encode(x, FORMATS["IQ2_XS"])
    assert not can_encode(FORMATS["Q8_K"])
    with pytest.raises(UnsupportedError, match="100 elements"):
        encode(x[:, :100], FORMATS["Q8_0"])
    x[1, 3] = torch.nan
    with pytest.raises(CheckpointError, match="cannot be stored as Q4_K"):
        encode(x, FORMATS["Q4_K"])
    assert encode(x, FORMATS["BF16"]).shape == (2, 512)
