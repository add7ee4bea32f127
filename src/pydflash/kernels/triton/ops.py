"""The OpTable of Triton's kernels: the fused ops, each from a file of its own."""

import logging
from collections.abc import Sequence

import torch

from pydflash.kernels.ops import OpTable, Weight
from pydflash.kernels.triton import layers, weights
from pydflash.kernels.triton.argmax import argmax
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.calibrate import calibrate
from pydflash.kernels.triton.delta import delta
from pydflash.kernels.triton.delta_commit import delta_commit, delta_commit_all
from pydflash.kernels.triton.embed import embed
from pydflash.kernels.triton.moe import moe
from pydflash.kernels.triton.pack import FORMATS, held_bytes
from pydflash.kernels.triton.plant import plant
from pydflash.kernels.triton.rope_store import store_kv
from pydflash.kernels.triton.shortlist import shortlist
from pydflash.kernels.triton.slots import copy_slots
from pydflash.kernels.triton.top import top
from pydflash.kernels.triton.tree import grow_trees
from pydflash.quant.tensor import QuantTensor

log = logging.getLogger(__name__)


def build_ops(device: torch.device, host_tables: bool = False) -> OpTable:
    """Kernels for one GPU (or, under Triton's interpreter, for small tests on the CPU).

    `host_tables`: embedding tables stay on the host, as far as page-locked memory is to be had.
    """

    def prepare(parts: Sequence[QuantTensor], bias: torch.Tensor | None = None) -> Weight:
        return weights.prepare(parts, device, bias)

    def host_table(part: QuantTensor) -> Weight:
        try:
            return weights.prepare_table(part, device)
        except MemoryError as error:
            log.warning("%s goes to %s: %s", part.name, device, error)
            return weights.prepare([part], device, None)

    return OpTable(
        name="triton",
        device=device,
        borrows=False,
        prepare=prepare,
        embed=embed,
        linear=layers.linear,
        linear_add=layers.linear_add,
        norm_linear=layers.norm_linear,
        norm_gated=layers.norm_gated,
        attention=attention,
        attention_layer=layers.attention_layer,
        dense_layer=layers.dense_layer,
        copy_slots=copy_slots,
        formats=FORMATS,
        held_bytes=held_bytes,
        host_table=host_table if host_tables else None,
        delta=delta,
        delta_layer=layers.delta_layer,
        delta_commit=delta_commit,
        delta_commit_all=delta_commit_all,
        moe=moe,
        store_kv=store_kv,
        top=top,
        argmax=argmax,
        shortlist=shortlist,
        grow_trees=grow_trees,
        calibrate=calibrate,
        plant=plant,
    )
