"""The table of GGUF tensor formats: ggml id, elements in a block, bytes of a block.

Source: the GGUF specification and `ggml.h` (`enum ggml_type`). A format here can be *read*; which of
them a backend can multiply by is for `kernels.select` to say.
"""

from dataclasses import dataclass

from pydflash.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantFormat:
    """One on-disk number format. Blocks run along the last (input) dimension."""

    name: str
    ggml_id: int
    block: int
    block_bytes: int

    @property
    def is_dense(self) -> bool:
        """True for plain numbers, one to a block."""
        return self.block == 1

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` elements; `cols` must be whole blocks."""
        if cols % self.block:
            raise UnsupportedError(
                f"a row of {cols} elements is not whole {self.name} blocks of {self.block}; "
                f"quantise it to a format whose block divides {cols}"
            )
        return cols // self.block * self.block_bytes


_ROWS = (
    # name, ggml id, elements, bytes
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 18),
    ("Q4_1", 3, 32, 20),
    ("Q5_0", 6, 32, 22),
    ("Q5_1", 7, 32, 24),
    ("Q8_0", 8, 32, 34),
    ("Q8_1", 9, 32, 40),
    ("Q2_K", 10, 256, 84),
    ("Q3_K", 11, 256, 110),
    ("Q4_K", 12, 256, 144),
    ("Q5_K", 13, 256, 176),
    ("Q6_K", 14, 256, 210),
    ("Q8_K", 15, 256, 292),
    ("IQ2_XXS", 16, 256, 66),
    ("IQ2_XS", 17, 256, 74),
    ("IQ3_XXS", 18, 256, 98),
    ("IQ1_S", 19, 256, 50),
    ("IQ4_NL", 20, 32, 18),
    ("IQ3_S", 21, 256, 110),
    ("IQ2_S", 22, 256, 82),
    ("IQ4_XS", 23, 256, 136),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 56),
    ("BF16", 30, 1, 2),
    ("TQ1_0", 34, 256, 54),
    ("TQ2_0", 35, 256, 66),
    ("MXFP4", 39, 32, 17),
    ("NVFP4", 40, 64, 36),
    ("Q1_0", 41, 128, 18),
)

FORMATS: dict[str, QuantFormat] = {
    name: QuantFormat(name=name, ggml_id=ggml_id, block=block, block_bytes=size)
    for name, ggml_id, block, size in _ROWS
}
BY_ID: dict[int, QuantFormat] = {f.ggml_id: f for f in FORMATS.values()}

F32 = FORMATS["F32"]
F16 = FORMATS["F16"]
BF16 = FORMATS["BF16"]


def format_by_id(ggml_id: int, *, tensor: str = "tensor") -> QuantFormat:
    """Look a format up by its ggml number; an unknown number names the tensor that carries it."""
    found = BY_ID.get(ggml_id)
    if found is None:
        raise UnsupportedError(
            f"{tensor} has ggml type {ggml_id}, which this version does not know; "
            "requantise the file to a supported type or update pydflash"
        )
    return found
