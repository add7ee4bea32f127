"""Which format each tensor of a model gets when the model is quantised. Policy only: names and shapes in, no
tensors.

The mixes are llama.cpp's (`llama-quant.cpp`): the matrices whose error costs most get more bits.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydflash.errors import ConfigError
from pydflash.quant.formats import F16, FORMATS, QuantFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class MixType:
    """A type a whole file can be quantised to. `file_type` is the number of `general.file_type`."""

    name: str
    base: QuantFormat
    file_type: int
    more_bits: bool = False  # some attn_v and ffn_down in Q6_K, merged qkv a step up


_ROWS = (
    ("F32", "F32", 0),
    ("F16", "F16", 1),
    ("BF16", "BF16", 32),
    ("Q8_0", "Q8_0", 7),
    ("Q4_0", "Q4_0", 2),
    ("Q4_1", "Q4_1", 3),
    ("Q5_0", "Q5_0", 8),
    ("Q5_1", "Q5_1", 9),
    ("Q2_K", "Q2_K", 10),
    ("Q3_K", "Q3_K", 11),
    ("Q4_K", "Q4_K", 14),
    ("Q4_K_M", "Q4_K", 15),
    ("Q5_K", "Q5_K", 16),
    ("Q5_K_M", "Q5_K", 17),
    ("Q6_K", "Q6_K", 18),
)
MIXES: dict[str, MixType] = {
    name: MixType(name=name, base=FORMATS[base], file_type=number, more_bits=name.endswith("_M"))
    for name, base, number in _ROWS
}

# For rows that are whole blocks of 32 but not of 256: the next format up.
_FALLBACK = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_STEP_UP = {"Q4_K": "Q5_K", "Q5_K": "Q6_K"}
_OUTPUT = "output.weight"
_EMBEDDING = "token_embd.weight"
_LAYER = re.compile(r"^blk\.(\d+)\.")
# Small and sensitive, or read elementwise: kept as they are.
_KEPT = re.compile(
    r"_norm\.|ffn_gate_inp|ssm_conv1d|shortconv\.conv|position_embd|token_types|altup|laurel"
    r"|per_layer_model_proj|time_mix|rope_"
)


def mix_type(name: str) -> MixType:
    """Look a type up by name, in any case; Q4_K_S and the like are spelled without the S."""
    found = MIXES.get(name.upper().removesuffix("_S"))
    if found is None:
        raise ConfigError(f"{name} is not a type a model can be written in; use {', '.join(MIXES)}")
    return found


class Mix:
    """The formats of one model's tensors, all of whose names it must know (layers count by rank)."""

    def __init__(self, kind: MixType, names: Iterable[str]) -> None:
        self.kind = kind
        names = list(names)
        self._output = _OUTPUT if _OUTPUT in names else _EMBEDDING
        self._attn_v = _layers(names, "attn_v")
        self._ffn_down = _layers(names, "ffn_down")

    def format_of(self, name: str, shape: tuple[int, ...], source: QuantFormat) -> QuantFormat:
        """Format for a tensor stored as `source`; `source` itself means: copy the bytes."""
        if not _is_matrix(name, shape, source):
            return source
        wanted = self._wanted(name)
        if shape[-1] % wanted.block and wanted.name in _FALLBACK:
            wanted = FORMATS[_FALLBACK[wanted.name]]
        return F16 if shape[-1] % wanted.block else wanted

    def _wanted(self, name: str) -> QuantFormat:
        base = self.kind.base
        sixth = FORMATS["Q6_K"]
        if name == self._output and base.bits_per_weight < sixth.bits_per_weight:
            return sixth
        if not self.kind.more_bits:
            return base
        if "attn_qkv" in name:
            return FORMATS[_STEP_UP[base.name]]
        for part, layers in (("attn_v", self._attn_v), ("ffn_down", self._ffn_down)):
            if part in name and _takes_more(layers.get(_layer(name), -1), len(layers)):
                return sixth
        return base


def _is_matrix(name: str, shape: tuple[int, ...], source: QuantFormat) -> bool:
    numbers = not source.name.startswith("I") or source.name.startswith("IQ")  # not I8 .. I64
    return numbers and len(shape) > 1 and name.endswith(".weight") and not _KEPT.search(name)


def _layer(name: str) -> int:
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def _layers(names: Iterable[str], part: str) -> dict[int, int]:
    """Rank of each layer that has such a tensor."""
    found = {_layer(name) for name in names if part in name and name.endswith(".weight")} - {-1}
    return {layer: rank for rank, layer in enumerate(sorted(found))}


def _takes_more(rank: int, count: int) -> bool:
    """The first and the last eighth, and every third between them."""
    if rank < 0:
        return False
    eighth = count // 8
    return rank < eighth or rank >= 7 * count // 8 or (rank - eighth) % 3 == 2
