"""Drafter networks over seeded weights, and the target's two matrices they borrow."""

from collections.abc import Mapping

import numpy as np
import torch

from pydflash.draft.config import ConvConfig, DraftConfig, MarkovConfig, SelectorConfig
from pydflash.draft.dflash import DFlash
from pydflash.kernels.cpu.ops import build_ops as build_cpu
from pydflash.kernels.ops import OpTable
from pydflash.kernels.ref.ops import build_ops as build_reference
from pydflash.layers.rope import RopeSpec
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from tests.draft.golden_cases import F32, MASK, Case, weights

CPU = torch.device("cpu")


def ops_of(name: str, threads: int = 2) -> OpTable:
    return build_reference(CPU) if name == "ref" else build_cpu(CPU, threads)


def plain(name: str, values: np.ndarray) -> QuantTensor:
    """A tensor as an F32 (or I32) file would store it."""
    form = "I32" if values.dtype == np.int32 else "F32"
    data = np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape[:-1], -1)
    return QuantTensor(
        name=name, data=torch.from_numpy(data), format=FORMATS[form], shape=values.shape
    )


def config_of(case: Case, **more: object) -> DraftConfig:
    selector = SelectorConfig(rank=case.rank, top_k=case.top_k)
    markov = MarkovConfig(rank=case.rank, confidence=True, confidence_with_markov=True)
    settings: dict[str, object] = {
        "hidden": case.hidden,
        "ffn": case.ffn,
        "layers": len(case.windows),
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "eps": case.eps,
        "rope": RopeSpec(dims=case.head_dim, base=case.theta, interleaved=False),
        "block_size": case.block_size,
        "mask_token": MASK,
        "target_layers": tuple(range(1, 1 + case.taps)),
        "target_hidden": case.hidden,
        "vocab": case.vocab,
        "windows": case.windows,
        "causal": case.causal,
        "from_anchor": case.markov,
        "conv": ConvConfig(width=2, group=case.group) if case.conv else None,
        "selector": selector if case.rank and not case.markov else None,
        "markov": markov if case.markov else None,
    }
    return DraftConfig(**{**settings, **more})  # type: ignore[arg-type]


def network(
    case: Case,
    ops: OpTable,
    tensors: Mapping[str, F32] | None = None,
    *,
    max_positions: int = 1000,
    **more: object,
) -> DFlash:
    """The drafter of a case; `tensors` replace the seeded ones, `more` the configuration's."""
    made = dict(weights(case) if tensors is None else tensors)
    target = plain("output", made["target.output.weight"])

    def get(name: str) -> QuantTensor | None:
        return plain(name, made[name]) if name in made else None

    def rows(ids: torch.Tensor) -> QuantTensor:
        data = target.data[ids]
        return QuantTensor(
            name="rows", data=data, format=target.format, shape=(len(ids), target.cols)
        )

    return DFlash(
        config_of(case, **more),
        get,
        ops,
        token_embd=ops.prepare([plain("token_embd", made["token_embd.weight"])]),
        output=ops.prepare([target]),
        max_positions=max_positions,
        output_rows=rows,
    )
