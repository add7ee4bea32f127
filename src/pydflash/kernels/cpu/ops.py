"""The OpTable of the CPU: thin calls into the C library (see src/ for the arithmetic and its invariants).

Exact rows and prefill rows take the same arithmetic here: an output's bits depend on its own row and
weights alone, for any number of rows, any number of threads and any instruction set. That is more than
the op contract asks (row invariance of exact rows), so `spans` is not looked at.
"""

import torch

from pydflash.errors import ConfigError
from pydflash.kernels.cpu import library as cpu_library
from pydflash.kernels.cpu.attention import Attention, copy_slots
from pydflash.kernels.cpu.delta import Delta
from pydflash.kernels.cpu.layers import Layers
from pydflash.kernels.cpu.moe import Moe
from pydflash.kernels.cpu.products import Products
from pydflash.kernels.cpu.top import top
from pydflash.kernels.cpu.weights import FORMATS, held_bytes
from pydflash.kernels.ops import OpTable


def build_ops(device: torch.device, threads: int) -> OpTable:
    """The table for `device` (a CPU) on `threads` threads; ConfigError when the library cannot be had.

    NOTE: `threads` should be torch's own number (`torch.set_num_threads`): both share one OpenMP pool, and
    teams of changing size make it start threads anew.
    """
    library = cpu_library.load()
    if library is None:
        raise ConfigError(
            "the CPU kernels could not be built; install a C++ compiler or run with --ops ref"
        )
    products = Products(library, threads)
    attention = Attention(library, threads)
    delta = Delta(library, threads)
    layers = Layers(library, products, attention, delta, threads)
    return OpTable(
        name="cpu",
        device=device,
        borrows=False,
        prepare=products.prepare,
        embed=products.embed,
        linear=products.linear,
        linear_add=products.linear_add,
        norm_linear=products.norm_linear,
        norm_gated=products.norm_gated,
        attention=attention,
        attention_layer=layers.attention_layer,
        dense_layer=layers.dense_layer,
        copy_slots=lambda kvs, src, dst: copy_slots(library, kvs, src, dst),
        formats=frozenset(FORMATS),
        delta=delta.delta,
        delta_layer=layers.delta_layer,
        delta_commit=delta.commit,
        moe=Moe(library, threads),
        scales=True,
        held_bytes=held_bytes,
        store_kv=attention.store_kv,
        top=lambda logits, k: top(library, threads, logits, k),
    )
