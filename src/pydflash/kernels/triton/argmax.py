"""The best token of each row, and whether the row is sound: blocks of columns, then the best of blocks."""

import torch
import triton
import triton.language as tl

from pydflash.kernels.triton.order import id_of, number_of, pack

BLOCK = 4096


@triton.jit(do_not_specialize=["stride"])
def scan_kernel(logits_ptr, keys_ptr, sound_ptr, vocab, stride, blocks, BLOCK: tl.constexpr):
    i_row, i_block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_col = i_block * BLOCK + tl.arange(0, BLOCK)
    valid = o_col < vocab
    x = tl.load(logits_ptr + i_row * stride + o_col, mask=valid, other=float("-inf"))
    tl.store(keys_ptr + i_row * blocks + i_block, tl.max(pack(x, o_col, valid), 0))
    sound = tl.min((x < float("inf")).to(tl.int32), 0)
    tl.store(sound_ptr + i_row * blocks + i_block, sound)


@triton.jit
def pick_kernel(
    keys_ptr, marks_ptr, tokens_ptr, values_ptr, sound_ptr, blocks, BLOCKS: tl.constexpr
):
    i_row = tl.program_id(0)
    o_block = tl.arange(0, BLOCKS)
    valid = o_block < blocks
    key = tl.max(tl.load(keys_ptr + i_row * blocks + o_block, mask=valid, other=-(2**63)), 0)
    sound = tl.min(tl.load(marks_ptr + i_row * blocks + o_block, mask=valid, other=1), 0)
    tl.store(tokens_ptr + i_row, id_of(key))
    tl.store(values_ptr + i_row, number_of(key))
    tl.store(sound_ptr + i_row, sound != 0)


def argmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `OpTable.argmax`. Rows may lie at any distance."""
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    make = logits.new_empty
    keys = make((rows, blocks), dtype=torch.int64)
    marks = make((rows, blocks), dtype=torch.int32)
    tokens, values = make(rows, dtype=torch.int32), make(rows)
    sound = make(rows, dtype=torch.bool)
    scan_kernel[(rows, blocks)](
        logits, keys, marks, vocab, logits.stride(0), blocks, BLOCK, num_warps=8
    )
    pick_kernel[(rows,)](
        keys, marks, tokens, values, sound, blocks, triton.next_power_of_2(blocks), num_warps=1
    )
    return tokens, values, sound
