"""Drafter networks over seeded weights, and the target's two matrices they borrow."""

from collections.abc import Mapping

import numpy as np
import torch

from pydflash.draft.config import ConvConfig, DraftConfig, MarkovConfig, SelectorConfig
from pydflash.draft.dflash import DFlash
from pydflash.kernels.ops import OpTable
from pydflash.kernels.record import Recorder
from pydflash.layers.rope import RopeSpec
from pydflash.quant.formats import FORMATS
from pydflash.quant.tensor import QuantTensor
from pydflash.state.ring import RingContext
from tests.backends import table
from tests.draft.golden_cases import MASK, Case, weights


def ops_of(name: str, threads: int = 2) -> OpTable:
    return table(name, threads)


def give(context: RingContext, position: int, features: torch.Tensor) -> None:
    """Append features, put where the drafter's kernels are."""
    context.append(position, features.to(context.store.kv.ops.device))


def plain(name: str, values: np.ndarray) -> QuantTensor:
    """A tensor as a file of these numbers would store it."""
    form = {"float32": "F32", "int32": "I32", "int64": "I64"}[values.dtype.name]
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


def assemble(
    config: DraftConfig,
    ops: OpTable,
    tensors: Mapping[str, torch.Tensor],
    embd: torch.Tensor,
    output: torch.Tensor,
    *,
    max_positions: int,
    record: Recorder | None = None,
) -> DFlash:
    """A drafter of these tensors over a target's embedding and output [V, E]."""
    target = plain("output", output.numpy())

    def get(name: str) -> QuantTensor | None:
        return plain(name, tensors[name].numpy()) if name in tensors else None

    def rows(ids: torch.Tensor) -> QuantTensor:
        shape = (len(ids), target.cols)
        return QuantTensor(name="rows", data=target.data[ids], format=target.format, shape=shape)

    return DFlash(
        config,
        get,
        ops,
        token_embd=ops.prepare([plain("token_embd", embd.numpy())]),
        output=ops.prepare([target]),
        max_positions=max_positions,
        output_rows=rows,
        record=record,
    )


def network(case: Case, ops: OpTable) -> DFlash:
    """The drafter of a golden case."""
    made = {name: torch.from_numpy(x) for name, x in weights(case).items()}
    embd, output = made.pop("token_embd.weight"), made.pop("target.output.weight")
    return assemble(config_of(case), ops, made, embd, output, max_positions=1000)
