"""Float weights to blocks of any format: quantised where the official package can, else valid random ones."""

import numpy as np
from gguf import GGMLQuantizationType, quants

from pydflash.quant.formats import FORMATS

# Where a block keeps its scale (and its minimum), in bytes from its start, float16 but for two formats
# below; and how many times the scale the minimum must be for the values to lie around zero.
_SCALES: dict[str, tuple[int, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0),
    "IQ1_S": (0, None, 0),
    "IQ2_XXS": (0, None, 0),
    "IQ2_XS": (0, None, 0),
    "IQ2_S": (0, None, 0),
    "IQ3_XXS": (0, None, 0),
    "IQ3_S": (0, None, 0),
    "IQ4_NL": (0, None, 0),
    "IQ4_XS": (0, None, 0),
    "IQ1_M": (48, None, 0),
    "NVFP4": (0, None, 0),
}


def pack(values: np.ndarray, name: str, rng: np.random.Generator) -> np.ndarray:
    """`values` float32 [..., cols] as the format `name`: an array in numpy's type, or uint8 [..., row bytes].

    Formats that nothing can quantise to get random blocks with about the same standard deviation.
    """
    if name == "F32":
        return values.astype(np.float32)
    if name == "F16":
        return values.astype(np.float16)
    if name in _SCALES:
        return random_blocks(values.shape, name, float(values.std()) or 1.0, rng)
    return quants.quantize(values.astype(np.float32), GGMLQuantizationType[name])


def random_blocks(
    shape: tuple[int, ...], name: str, std: float, rng: np.random.Generator
) -> np.ndarray:
    """uint8 [..., row bytes]: random bits with scales that give values of about `std`."""
    layout = FORMATS[name]
    width = layout.row_bytes(shape[-1])
    blocks = rng.integers(0, 256, (*shape[:-1], width), dtype=np.uint8)
    blocks = blocks.reshape(-1, layout.block_bytes)
    _set_scale(blocks, name, np.ones(len(blocks)))
    sample = quants.dequantize(blocks[:256], GGMLQuantizationType[name])
    # Scales differ from block to block, as in real files.
    scales = std / float(sample.std()) * rng.uniform(0.5, 1.5, len(blocks))
    _set_scale(blocks, name, scales)
    return blocks.reshape(*shape[:-1], width)


def _set_scale(blocks: np.ndarray, name: str, scales: np.ndarray) -> None:
    scale_at, min_at, ratio = _SCALES[name]
    if name == "IQ1_M":
        # The float16 is dealt out, four bits each, to the top of four 16-bit words.
        words = blocks[:, scale_at : scale_at + 8].copy().view(np.uint16)
        half = scales.astype(np.float16).view(np.uint16)[:, None]
        words = words & 0x0FFF | (half >> np.arange(0, 16, 4, dtype=np.uint16) & 0xF) << 12
        blocks[:, scale_at : scale_at + 8] = words.astype(np.uint16).view(np.uint8)
        return
    if name == "NVFP4":
        # Four scales of 4 exponent bits (bias 7) and 3 of mantissa: the exponent is what matters.
        exponent = np.clip(np.round(np.log2(scales)) + 7, 1, 14).astype(np.uint8)[:, None]
        blocks[:, :4] = exponent << 3 | blocks[:, :4] & 7
        return
    for place, factor in ((scale_at, 1.0), (min_at, ratio)):
        if place is not None:
            halves = (scales * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)
            blocks[:, place : place + 2] = halves
