"""The attention op: StepBatch, PagedKV and AttnArgs turned into C records, once each, and one C call."""

import ctypes
import weakref
from collections.abc import Sequence

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu.records import AttnRecord, BatchRecord, KVRecord
from pydflash.kernels.ops import AttnArgs, PagedKV, StepBatch

Tensor = torch.Tensor

KV_FORMATS = ("f32", "f16", "bf16", "q8_0")
"""In the order of `enum KvFormat` in src/layout.h."""

MAX_HEAD_DIM = 512
MAX_GROUP = 72  # TILE_QUERIES in src/attention.inc


class Attention:
    """Callable form of `OpTable.attention`. Holds the records of the layers and of the last batch seen."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._call = library.pf_attention
        self._store = library.pf_store_kv
        self._threads = threads
        self._batch: StepBatch | None = None
        self._batch_record: tuple[int, object] = (0, None)
        # Keyed by id. A layer's arguments are kept alive; pages are not, so an entry also knows its tensors.
        self._layers: dict[int, tuple[AttnArgs, int, AttnRecord]] = {}
        self._pages: dict[int, _Pages] = {}

    def __call__(self, qkv: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> Tensor:
        pages, step = self.addresses(kv, args, batch)
        if not qkv.is_contiguous():
            qkv = qkv.contiguous()
        out = torch.empty((qkv.shape[0], args.heads * args.head_dim))
        layer = self.layer_address(args)
        self._call(layer, pages, step, qkv.data_ptr(), out.data_ptr(), self._threads)
        return out

    def store_kv(self, pairs: Tensor, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> None:
        """Norm, rotate and store keys and values f32 [T, 2G * D]; its rows may lie apart."""
        pages, step = self.addresses(kv, args, batch)
        if pairs.stride(-1) != 1:
            pairs = pairs.contiguous()
        self._store(
            self.layer_address(args), pages, step, pairs.data_ptr(), pairs.stride(0), self._threads
        )

    def layer_address(self, args: AttnArgs) -> int:
        """Where the C record of a layer's arguments lies."""
        return (self._layers.get(id(args)) or self._add_layer(args))[1]

    def addresses(self, kv: PagedKV, args: AttnArgs, batch: StepBatch) -> tuple[int, int]:
        """Where the C records of these pages and of this batch lie, until other ones are asked for."""
        pages = self._pages.get(id(kv))
        if pages is None or pages.k() is not kv.k or pages.v() is not kv.v:
            pages = self._add_pages(kv, args)
        if batch is not self._batch:
            self._batch_record = _batch_record(batch)
            self._batch = batch
        return pages.address, self._batch_record[0]

    def _add_layer(self, args: AttnArgs) -> tuple[AttnArgs, int, AttnRecord]:
        record = _attn_record(args)
        self._layers[id(args)] = entry = (args, ctypes.addressof(record), record)
        return entry

    def _add_pages(self, kv: PagedKV, args: AttnArgs) -> "_Pages":
        if len(self._pages) >= 1024:  # pools come and go in a long-lived process
            self._pages.clear()
        self._pages[id(kv)] = entry = _Pages(kv, args.head_dim)
        return entry


class _Pages:
    """The record of one layer's pages, valid while its tensors live."""

    __slots__ = ("address", "k", "record", "v")

    def __init__(self, kv: PagedKV, head_dim: int) -> None:
        self.k = weakref.ref(kv.k)
        self.v = weakref.ref(kv.v)
        self.record = _kv_record(kv, head_dim)
        self.address = ctypes.addressof(self.record)


def _attn_record(args: AttnArgs) -> AttnRecord:
    if args.heads % args.kv_heads or args.heads // args.kv_heads > MAX_GROUP:
        raise UnsupportedError(
            f"attention with {args.heads} query heads over {args.kv_heads} kv heads; the CPU kernels "
            f"want whole groups of at most {MAX_GROUP}: run with --ops ref"
        )
    if args.head_dim > MAX_HEAD_DIM:
        raise UnsupportedError(
            f"attention heads of size {args.head_dim}; the CPU kernels go up to {MAX_HEAD_DIM}: "
            "run with --ops ref"
        )
    rope = args.rope
    return AttnRecord(
        q_norm=_pointer(args.q_norm, "q_norm", torch.float32),
        k_norm=_pointer(args.k_norm, "k_norm", torch.float32),
        cos=None if rope is None else _pointer(rope.cos, "rope.cos", torch.float32),
        sin=None if rope is None else _pointer(rope.sin, "rope.sin", torch.float32),
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        rope_dims=0 if rope is None else rope.dims,
        interleaved=0 if rope is None else int(rope.interleaved),
        window=args.window or 0,
        scale=args.scale,
        eps=args.eps,
        softcap=args.softcap or 0.0,
        gated=int(args.gated),
        causal=int(args.causal),
    )


def _kv_record(kv: PagedKV, head_dim: int) -> KVRecord:
    for name in (kv.k_format, kv.v_format):
        if name not in KV_FORMATS:
            raise UnsupportedError(
                f"KV pages in {name}; the CPU kernels know {', '.join(KV_FORMATS)}"
            )
        if name == "q8_0" and head_dim % 32:
            raise UnsupportedError(
                f"KV pages in q8_0 need heads of whole 32 dimensions, not {head_dim}; "
                "choose f16 for the KV cache"
            )
    return KVRecord(
        k=_pointer(kv.k, "k"),
        v=_pointer(kv.v, "v"),
        k_scale=_pointer(kv.k_scale, "k_scale", torch.float16),
        v_scale=_pointer(kv.v_scale, "v_scale", torch.float16),
        k_format=KV_FORMATS.index(kv.k_format),
        v_format=KV_FORMATS.index(kv.v_format),
    )


def _batch_record(batch: StepBatch) -> tuple[int, object]:
    """Address of the record, and what must live as long as it."""
    cu_q = (ctypes.c_int32 * len(batch.cu_q))(*batch.cu_q)
    kinds = (ctypes.c_int32 * len(batch.kinds))(*(int(kind) for kind in batch.kinds))
    record = BatchRecord(
        positions=_pointer(batch.positions, "positions", torch.int32),
        row_of=_pointer(batch.row_of, "row_of", torch.int32),
        base=_pointer(batch.base, "base", torch.int32),
        page_table=_pointer(batch.page_table, "page_table", torch.int32),
        write_slots=_pointer(batch.write_slots, "write_slots", torch.int32),
        ancestors=_pointer(batch.ancestors, "ancestors", torch.int32),
        cu_q=ctypes.addressof(cu_q),
        kinds=ctypes.addressof(kinds),
        first=_pointer(batch.first, "first", torch.int32),
        tokens=batch.positions.shape[0],  # a drafter stores features, which have no tokens
        rows=len(batch.kinds),
        pages_per_row=batch.page_table.shape[1],
        ancestor_cols=0 if batch.ancestors is None else batch.ancestors.shape[1],
    )
    return ctypes.addressof(record), (record, cu_q, kinds)


def _pointer(tensor: Tensor | None, name: str, dtype: torch.dtype | None = None) -> int | None:
    if tensor is None:
        return None
    if not tensor.is_contiguous() or (dtype is not None and tensor.dtype != dtype):
        raise ValueError(
            f"attention: {name} must be contiguous{'' if dtype is None else f' {dtype}'}, "
            f"got {tensor.dtype} with strides {tensor.stride()}"
        )
    return tensor.data_ptr()


def copy_slots(library: ctypes.CDLL, kvs: Sequence[PagedKV], src: Tensor, dst: Tensor) -> None:
    """Move stored positions src -> dst, int32 [n] each; every source is read before any place is written."""
    src, dst = src.contiguous(), dst.contiguous()
    for kv in kvs:
        _copy_slots(library, kv, src, dst)


def _copy_slots(library: ctypes.CDLL, kv: PagedKV, src: Tensor, dst: Tensor) -> None:
    for pages, keys_last in ((kv.k, True), (kv.k_scale, True), (kv.v, False), (kv.v_scale, False)):
        if pages is None:
            continue
        heads, rows = pages.shape[1], pages.shape[2] if keys_last else pages.shape[3]
        outer, inner = (heads * rows, 1) if keys_last else (heads, rows)
        assert pages.is_contiguous()
        library.pf_copy(
            pages.data_ptr(),
            outer,
            inner * pages.element_size(),
            src.data_ptr(),
            dst.data_ptr(),
            src.numel(),
        )
