"""What llama.cpp's `dflash` files must hold and other drafters leave out, added so that nothing they draft
changes.

There a selector comes with convolutions, a reduced vocabulary with its own head, and the successors'
codebook has a row for every token of the target, drafted or not.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from pydflash.draft.config import ConvConfig, DraftConfig
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor

SUCCESSORS = "dflash.selector.succ_cb"


def with_identity_convs(
    config: DraftConfig, tensors: Mapping[str, Tensor | QuantTensor]
) -> tuple[DraftConfig, dict[str, Tensor | QuantTensor]]:
    """A selector alone gets convolutions of one tap, which is 1 and never corrected: x * (1 + 0) is x."""
    if config.selector is None or config.conv is not None:
        return config, dict(tensors)
    wide = replace(config, conv=ConvConfig(width=1, group=config.hidden))
    added: dict[str, Tensor | QuantTensor] = {}
    for i in range(config.layers):
        for side in ("attn_conv", "ffn_conv"):
            added[f"blk.{i}.{side}.base"] = torch.ones(2, 1, config.hidden)
            added[f"blk.{i}.{side}.proj.weight"] = torch.zeros(2, config.hidden)
    return wide, dict(tensors) | added


def spread_rows(tensor: QuantTensor, ids: Tensor, rows: int) -> QuantTensor:
    """[Vd, C] as [rows, C], row i at ids[i]. The others are zero bytes (zeros, in every float and block
    format), and never looked at: a token that is not drafted has the logit minus infinity."""
    data = torch.zeros(rows, tensor.data.shape[-1], dtype=torch.uint8)
    data[ids] = tensor.data
    return replace(tensor, data=data, shape=(rows, tensor.cols))


def pick_rows(tensor: QuantTensor, ids: Tensor) -> QuantTensor:
    """Rows `ids` int64 [n] of a matrix, as they are stored."""
    return replace(tensor, data=tensor.data[ids], shape=(len(ids), tensor.cols))
