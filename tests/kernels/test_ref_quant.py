"""`dequantize` against the official reader, bit for bit, on every format both know."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from pydflash.errors import UnsupportedError
from pydflash.kernels.ref import quant as ref_quant
from pydflash.kernels.ref.quant import can_decode, dequantize
from pydflash.quant.formats import FORMATS, QuantFormat
from pydflash.quant.tensor import QuantTensor

OFFICIAL = [*sorted(t.name for t in quants._type_traits), "F32", "F16"]
# Where the half-float scales of a block lie; IQ1_M scatters its one over four words.
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "MXFP4": (),
    "NVFP4": (),
    "BF16": (),
    "F32": (),
}


def random_rows(fmt: QuantFormat, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Random bytes whose scales are finite; the first block of all zeros, scale bits of both signs."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows * blocks, fmt.block_bytes), dtype=np.uint8)
    for at in HALVES.get(fmt.name, (0,)):
        scales = rng.standard_normal(rows * blocks) * 10.0 ** rng.integers(-7, 4, rows * blocks)
        data[:, at : at + 2] = scales.astype(np.float16).reshape(-1, 1).view(np.uint8)
    if fmt.name == "IQ1_M":
        data[:, 55] &= 0xBF  # the top exponent bit of the scattered scale
    if fmt.name == "MXFP4":
        data[:, 0] = np.minimum(data[:, 0], 251)  # 12 * 2**(251 - 128) still fits
    if fmt.name in ("F32", "BF16"):
        data[:, -1] &= 0xBF
    data[0] = 0
    return data.reshape(rows, blocks * fmt.block_bytes)


def as_tensor(fmt: QuantFormat, data: np.ndarray) -> QuantTensor:
    cols = data.shape[-1] // fmt.block_bytes * fmt.block
    return QuantTensor(
        name="w", data=torch.from_numpy(data), format=fmt, shape=(*data.shape[:-1], cols)
    )


def same_bits(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    return np.array_equal(ours.numpy().view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("name", OFFICIAL)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (7, 3), (33, 5)])
def test_dequantize_is_bit_equal_to_the_official_reader(name: str, rows: int, blocks: int) -> None:
    fmt = FORMATS[name]
    data = random_rows(fmt, rows, blocks, seed=rows)
    expected = quants.dequantize(data, GGMLQuantizationType[name])
    assert np.isfinite(expected).all()
    found = dequantize(as_tensor(fmt, data))
    assert found.shape == (rows, blocks * fmt.block)
    assert same_bits(found, expected)


@pytest.mark.parametrize("name", OFFICIAL)
def test_dequantize_reaches_every_code(name: str) -> None:
    """Enough random blocks that each grid row and each byte value occurs."""
    fmt = FORMATS[name]
    data = random_rows(fmt, 64, 16, seed=5)
    expected = quants.dequantize(data, GGMLQuantizationType[name])
    assert same_bits(dequantize(as_tensor(fmt, data)), expected)


def test_dequantize_works_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = FORMATS["Q6_K"]
    tensor = as_tensor(fmt, random_rows(fmt, 23, 2, seed=1))
    whole = dequantize(tensor)
    monkeypatch.setattr(ref_quant, "_SLICE", 5 * 512)
    assert torch.equal(dequantize(tensor), whole)


def test_dequantize_takes_views_vectors_and_stacks() -> None:
    fmt = FORMATS["Q4_1"]
    tensor = as_tensor(fmt, random_rows(fmt, 6, 4, seed=2))
    whole = dequantize(tensor)
    assert torch.equal(dequantize(tensor.rows(1, 4)), whole[1:4])
    assert torch.equal(dequantize(tensor.split_cols(2)[1]), whole[:, 64:])
    vector = QuantTensor(name="v", data=tensor.data[2], format=fmt, shape=(128,))
    assert torch.equal(dequantize(vector), whole[2])
    stack = QuantTensor(name="s", data=tensor.data.view(2, 3, -1), format=fmt, shape=(2, 3, 128))
    assert torch.equal(dequantize(stack), whole.view(2, 3, 128))
    assert torch.equal(dequantize(stack.split_cols(4)[3]), whole.view(2, 3, 128)[..., 96:])


def test_dequantize_takes_unaligned_bytes() -> None:
    fmt = FORMATS["F32"]
    numbers = torch.arange(8, dtype=torch.float32)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), numbers.view(torch.uint8)])[1:]
    assert torch.equal(
        dequantize(QuantTensor(name="w", data=shifted, format=fmt, shape=(8,))), numbers
    )
    one = random_rows(FORMATS["Q6_K"], 1, 1, seed=3)
    odd = torch.from_numpy(np.concatenate([[[np.uint8(0)]], one], axis=1))[:, 1:]
    tensor = QuantTensor(name="w", data=odd, format=FORMATS["Q6_K"], shape=(1, 256))
    assert same_bits(dequantize(tensor), quants.dequantize(one, GGMLQuantizationType.Q6_K))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("I8", torch.int8),
        ("I16", torch.int16),
        ("I32", torch.int32),
        ("I64", torch.int64),
        ("F64", torch.float64),
    ],
)
def test_dequantize_reads_plain_numbers(name: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor([[-3, 0, 7], [100, -128, 1]], dtype=dtype)
    tensor = QuantTensor(
        name="w", data=numbers.view(torch.uint8), format=FORMATS[name], shape=(2, 3)
    )
    assert torch.equal(dequantize(tensor), numbers.float())


def test_dequantize_reads_one_bit_signs() -> None:
    data = np.zeros((1, 18), dtype=np.uint8)
    data[0, :2] = np.array([0.5], dtype=np.float16).view(np.uint8)
    data[0, 2], data[0, 17] = 0b00000101, 0x80
    expected = torch.full((1, 128), -0.5)
    expected[0, [0, 2, 127]] = 0.5
    assert torch.equal(dequantize(as_tensor(FORMATS["Q1_0"], data)), expected)


def test_dequantize_refuses_activation_formats() -> None:
    fmt = FORMATS["Q8_K"]
    tensor = as_tensor(fmt, np.zeros((1, 292), dtype=np.uint8))
    assert not can_decode(fmt)
    with pytest.raises(UnsupportedError, match="w is Q8_K"):
        dequantize(tensor)
