"""Float weights to blocks of any format: quantised where the official package can, else valid random ones."""

import numpy as np
from gguf import GGMLQuantizationType, quants

from pydflash.quant.formats import FORMATS

# Where a block keeps its scale (and its minimum), in bytes from its start, all float16; and how many
# times the scale the minimum must be for the values to lie around zero.
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
    "Q1_0": (0, None, 0),
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
    scale_at, min_at, ratio = _SCALES[name]
    width = layout.row_bytes(shape[-1])
    blocks = rng.integers(0, 256, (*shape[:-1], width), dtype=np.uint8)
    blocks = blocks.reshape(-1, layout.block_bytes)
    _set_scale(blocks, scale_at, min_at, ratio, np.ones(len(blocks)))
    sample = quants.dequantize(blocks[:256], GGMLQuantizationType[name])
    # Scales differ from block to block, as in real files.
    scales = std / float(sample.std()) * rng.uniform(0.5, 1.5, len(blocks))
    _set_scale(blocks, scale_at, min_at, ratio, scales)
    return blocks.reshape(*shape[:-1], width)


def _set_scale(
    blocks: np.ndarray, scale_at: int, min_at: int | None, ratio: float, scales: np.ndarray
) -> None:
    for place, factor in ((scale_at, 1.0), (min_at, ratio)):
        if place is not None:
            halves = (scales * factor).astype(np.float16).view(np.uint8).reshape(-1, 2)
            blocks[:, place : place + 2] = halves
