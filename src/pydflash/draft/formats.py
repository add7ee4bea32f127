"""Which format each tensor of a drafter gets in a GGUF file. Policy only: names and shapes, no tensors.

Norms, biases, convolution taps and the confidence head are F32: they are small, or read elementwise.
"""

from collections.abc import Iterable

from pydflash.quant.formats import F16, F32, FORMATS, QuantFormat
from pydflash.quant.mix import Mix, MixType

_SMALL = (".base", "dspark.confidence.weight")
# Rows of these are looked up or added to logits one by one; below 8 bits they lose more than they save.
_TABLES = ("dflash.selector.", "dflash.dspark.markov.", "dflash.domino.")


class DraftFormats:
    """The formats of one drafter, all of whose names it must know. Without `kind` matrices keep theirs."""

    def __init__(self, kind: MixType | None, names: Iterable[str]) -> None:
        self._kind = kind
        self._mix = None if kind is None else Mix(kind, names)

    def format_of(self, name: str, shape: tuple[int, ...], source: QuantFormat) -> QuantFormat:
        if name == "d2t":
            return source
        if len(shape) == 1 or name.endswith(_SMALL):
            return F32
        if self._kind is None or self._mix is None:
            return source
        if name.startswith(_TABLES) and not self._kind.base.is_dense:
            table = FORMATS["Q8_0"]
            return F16 if shape[-1] % table.block else table
        if name.startswith(_TABLES):
            return self._kind.base
        return self._mix.format_of(name, shape, source)
