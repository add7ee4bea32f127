"""Offsets beyond 2^31 elements: work far into a large tensor gives the bits that it gives at its start.

Most of it runs on a CPU too: memory that nobody touches is only promised there. What must read or write
billions of elements wants a GPU with room for them.
"""

import gc
import mmap
import sys
from collections.abc import Iterator
from math import prod

import pytest
import torch

from pydflash.kernels.ops import PAGE_SIZE, PagedKV, Paths, Recurrent, RowKind, Weight
from pydflash.kernels.triton import pointwise, prefill, products
from pydflash.kernels.triton.argmax import argmax
from pydflash.kernels.triton.attention import attention
from pydflash.kernels.triton.decode import F16
from pydflash.kernels.triton.delta import delta, delta_commit
from pydflash.kernels.triton.embed import embed
from pydflash.kernels.triton.pack import TILE, UNIT, Planes
from pydflash.kernels.triton.rope_store import store_kv
from pydflash.kernels.triton.shortlist import shortlist
from pydflash.kernels.triton.slots import copy_slots
from pydflash.kernels.triton.top import top
from pydflash.kernels.triton.weights import Packed, Segment, assemble, packed_of, prepare
from tests.kernels.cpu_cases import Row
from tests.kernels.triton.attention_cases import args_of, on, random_qkv, rope, step
from tests.kernels.triton.test_delta import args_on, mixed, store
from tests.kernels.triton.test_delta import step as delta_step
from tests.kernels.triton.test_products import random_weight

Tensor = torch.Tensor
WIDE = 2**31
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is promised so on Linux")
if sys.platform == "linux":
    _PROMISED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


@pytest.fixture(autouse=True)
def _tidy(device: torch.device) -> Iterator[None]:
    """No poison: filling would touch what is only promised. Gigabytes go back afterwards."""
    torch.utils.deterministic.fill_uninitialized_memory = False
    yield
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def blank(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    """Zeros."""
    nbytes = prod(shape) * dtype.itemsize
    if device.type == "cpu":
        held = mmap.mmap(-1, nbytes, flags=_PROMISED)
        return torch.frombuffer(held, dtype=dtype).view(shape)
    need_room(device, nbytes)
    return torch.zeros(shape, dtype=dtype, device=device)


def need_room(device: torch.device, nbytes: int) -> None:
    """Skip what the GPU under test has no memory for."""
    if device.type != "cuda":
        pytest.skip("reads or writes more than 2^31 elements: run it on a GPU (make test-gpu)")
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(device)[0]
    if free < nbytes + (2 << 30):
        pytest.skip(f"needs {nbytes / 2**30:.0f} GiB on the GPU, {free / 2**30:.0f} are free")


def test_pages(device: torch.device) -> None:
    args = args_of(2, 1, head_dim=64, rope=rope(64, interleaved=False))
    pages = WIDE // (64 * PAGE_SIZE) + 5
    kv = PagedKV(
        k=blank(device, torch.float16, pages, 1, 64, PAGE_SIZE),
        v=blank(device, torch.float16, pages, 1, PAGE_SIZE, 64),
        k_format="f16",
        v_format="f16",
    )
    args = on(device, args)
    pairs = torch.randn(40, 2 * 64, device=device)
    qkv = random_qkv(args, 8).to(device)
    told = []
    for own in ((1, 2, 3, 4, 5), tuple(pages - i for i in range(1, 6))):
        for mine in (own[:2], own[3:]):
            store_kv(pairs, kv, args, on(device, step(Row(0, 40, mine))))
        assert bool(kv.k[own[0]].any())
        rows = [Row(40, 3, own[:2], parents=(-1, 0, 0)), Row(40, 5, own[3:], RowKind.PREFILL)]
        batch = on(device, step(*rows, ancestors=True))
        told.append(attention(qkv, kv, args, batch))
        src = torch.tensor([own[0] * PAGE_SIZE + 7, own[1] * PAGE_SIZE + 2], device=device).int()
        dst = torch.tensor([own[2] * PAGE_SIZE + 1, own[2] * PAGE_SIZE + 30], device=device).int()
        copy_slots([kv], src, dst)
        assert torch.equal(kv.k[own[2], 0, :, 1], kv.k[own[0], 0, :, 7])
        assert torch.equal(kv.v[own[2], 0, 30], kv.v[own[1], 0, 2])
    assert torch.isfinite(told[0]).all()
    assert torch.equal(*told)
    for low in range(1, 6):
        assert torch.equal(kv.k[low], kv.k[pages - low])
        assert torch.equal(kv.v[low], kv.v[pages - low])


def test_recurrent_slots(device: torch.device) -> None:
    """A token, a tree with its commit, and a prompt."""
    a = args_on(device, (1, 2, 32, 32, 4))
    slots = WIDE // (a.v_heads * a.k_dim * a.v_dim) + 2
    small = store(a, 1)
    wide = Recurrent(
        conv=blank(device, torch.float32, slots, 3, a.channels),
        state=blank(device, torch.float32, slots, a.v_heads, a.k_dim, a.v_dim),
    )
    places = (0, slots - 1)
    for slot in places:
        wide.conv[slot], wide.state[slot] = small.conv[0], small.state[0]
    token, tree, prompt = mixed(a, 1), mixed(a, 3), mixed(a, 33)
    told = []
    for slot in places:
        one = delta_step(device, [(1, RowKind.EXACT)])
        three = delta_step(device, [(3, RowKind.EXACT)], [-1, 0, 0])
        many = delta_step(device, [(33, RowKind.PREFILL)])
        for batch in (one, three, many):
            batch.slots.fill_(slot)
        found = [delta(token, wide, a, one), delta(tree, wide, a, three)]

        def ints(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        delta_commit(wide, Paths(slots=ints(slot), nodes=ints(0, 2), cu=(0, 2), starts=ints(0, 2)))
        told.append(torch.cat([*found, delta(prompt, wide, a, many)]))
    assert torch.isfinite(told[0]).all()
    assert torch.equal(*told)
    for held in (wide.state, wide.conv):
        assert torch.equal(held[0], held[-1])
    assert not torch.equal(wide.state[0], small.state[0])


def half_weight(device: torch.device, rows: int, cols: int) -> Weight:
    """Zeros in f16, but for the first and the last 64 rows, which are alike."""
    words = blank(device, torch.float16, rows // TILE, cols // UNIT, TILE, UNIT)
    words[0] = torch.randn(words.shape[1:]).half() * 0.05
    words[-1] = words[0]
    planes = Planes(
        kind=F16,
        rows=rows,
        words=words,
        high=None,
        scales=None,
        row_scale=torch.ones(rows, device=device),
    )
    packed = assemble([Segment(row0=0, planes=planes)], cols // UNIT)
    return Weight(
        rows=rows, cols=cols, parts=(rows,), formats=("F16",), nbytes=planes.nbytes, packed=packed
    )


def test_rows_of_a_table(device: torch.device) -> None:
    weight = half_weight(device, WIDE // 1024 + TILE, 1024)
    tokens = torch.tensor([5, weight.rows - TILE + 5, 100], dtype=torch.int32, device=device)
    got = embed(weight, tokens)
    words = packed_of(weight).segments[0].planes.words
    assert torch.equal(got[0], words[0, :, 5].flatten().float())
    assert torch.equal(got[0], got[1])
    assert not got[2].any()


def test_rows_of_a_weight(device: torch.device) -> None:
    need_room(device, 5 << 30)
    weight = half_weight(device, WIDE // 8192 + TILE, 8192)
    packed = packed_of(weight)
    x = torch.randn(70, 8192, device=device).half()
    few = pointwise.finish(
        products.product(x[:3], packed, weight.rows), packed.slot_counts, residual=None, bias=None
    )
    many = prefill.product(x, packed, weight.rows)[0]
    values = packed.segments[0].planes.words[0].transpose(0, 1).reshape(TILE, -1).double()
    for got in (few, many):
        want = x[: len(got)].double() @ values.T
        for part in (got[:, :TILE], got[:, -TILE:]):
            torch.testing.assert_close(part.double(), want, rtol=2e-3, atol=2e-3)
        assert not got[:, TILE:-TILE].any()


def test_sums_of_many_tokens(device: torch.device) -> None:
    vocab = 248320
    tokens = WIDE // vocab + 50
    need_room(device, 2 * 4 * tokens * vocab)
    weight = prepare([random_weight(vocab, 128, "Q8_0")], device, None)
    packed = packed_of(weight)
    x = torch.randn(tokens, 128, device=device).half()
    bias = torch.randn(vocab, device=device)
    whole = products.product(x, packed, vocab)
    few = products.product(x[-3:].clone(), packed, vocab)
    assert torch.equal(whole[0, -3:], few[0])
    counts = packed.slot_counts
    got = pointwise.finish(whole, counts, residual=None, bias=bias)
    assert torch.equal(got[-3:], pointwise.finish(few, counts, residual=None, bias=bias))
    del got
    assert torch.equal(prefill.product(x, packed, vocab)[0, -3:], prefill_of(x, packed, vocab))


def prefill_of(x: Tensor, packed: Packed, rows: int) -> Tensor:
    """The last three of a prompt chunk of 100."""
    return prefill.product(x[-100:].clone(), packed, rows)[0, -3:]


def test_logits(device: torch.device) -> None:
    vocab = 248320
    rows = WIDE // vocab + 50
    need_room(device, 5 * rows * vocab)
    logits = blank(device, torch.float32, rows, vocab)
    logits[-3:] = torch.randn(3, vocab, device=device)
    last = logits[-3:].clone()
    for mine, theirs in zip(argmax(logits), argmax(last), strict=True):
        assert torch.equal(mine[-3:], theirs)
    for mine, theirs in zip(top(logits, 8), top(last, 8), strict=True):
        assert torch.equal(mine[-3:], theirs)
    knobs = torch.tensor([[1.25, 1.0]], device=device).expand(rows, 2).contiguous()
    keys = torch.arange(rows, device=device)
    listed = shortlist(logits, 20, knobs, keys)
    for mine, theirs in zip(listed, shortlist(last, 20, knobs[-3:], keys[-3:]), strict=True):
        assert torch.equal(mine[-3:], theirs)
