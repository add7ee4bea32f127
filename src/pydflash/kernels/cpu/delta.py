"""The recurrent ops: DeltaArgs, Recurrent and StepBatch turned into C records, once each, and one C call.

Unlike the reference, prompts go token by token here too: a tile of the state stays in cache while all
tokens walk it, so a chunked form would save nothing, and a prompt has the bits of its tokens.
"""

import ctypes
from dataclasses import dataclass

import torch

from pydflash.errors import UnsupportedError
from pydflash.kernels.cpu.records import DeltaBatchRecord, DeltaRecord, TapeRecord
from pydflash.kernels.ops import DeltaArgs, Paths, Recurrent, RowKind, StepBatch, Tape

Tensor = torch.Tensor

MAX_TAPS = 16  # src/delta.inc


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's record and what it points into."""

    args: DeltaArgs
    keep: tuple[Tensor, ...]
    record: DeltaRecord
    address: int


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step's record and what it points into; `taped` of its tokens have a tape, 0 for none."""

    record: DeltaBatchRecord
    address: int
    keep: tuple[object, ...]
    taped: int


class Delta:
    """Callable forms of `OpTable.delta` and `OpTable.delta_commit`."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._delta = library.pf_delta
        self._commit = library.pf_delta_commit
        self._threads = threads
        self._layers: dict[int, _Layer] = {}
        self._step: StepBatch | None = None
        self._batch: _Batch | None = None

    def delta(
        self, mixed: Tensor, recurrent: Recurrent, args: DeltaArgs, batch: StepBatch
    ) -> Tensor:
        layer = self.layer_address(args)
        tape, step = self.begin(recurrent, args, batch)
        if not mixed.is_contiguous():
            mixed = mixed.contiguous()
        out = torch.empty((mixed.shape[0], args.inner))
        self._delta(
            layer,
            recurrent.conv.data_ptr(),
            recurrent.state.data_ptr(),
            None if tape is None else ctypes.byref(tape),
            step,
            mixed.data_ptr(),
            out.data_ptr(),
            self._threads,
        )
        return out

    def layer_address(self, args: DeltaArgs) -> int:
        """Where the C record of a layer's arguments lies."""
        return (self._layers.get(id(args)) or self._add_layer(args)).address

    def begin(
        self, recurrent: Recurrent, args: DeltaArgs, batch: StepBatch
    ) -> tuple[TapeRecord | None, int]:
        """Give the layer the tape that the step wants: its record, and where the step's own record lies."""
        if batch is not self._step or self._batch is None:
            self._step, self._batch = batch, _batch_of(batch)
        recurrent.tape = None
        if not self._batch.taped:
            return None, self._batch.address
        recurrent.tape = _new_tape(args, self._batch.taped)
        return _tape_record(recurrent.tape), self._batch.address

    def commit(self, recurrent: Recurrent, paths: Paths) -> None:
        tape = recurrent.tape
        assert tape is not None, "a commit without the step it belongs to"
        cu = (ctypes.c_int32 * len(paths.cu))(*paths.cu)
        sizes = DeltaRecord(  # all that a commit looks at
            k_heads=tape.k.shape[1],
            v_heads=tape.delta.shape[1],
            k_dim=tape.k.shape[2],
            v_dim=tape.delta.shape[2],
            width=recurrent.conv.shape[1] + 1,
        )
        self._commit(
            ctypes.byref(sizes),
            recurrent.conv.data_ptr(),
            recurrent.state.data_ptr(),
            ctypes.byref(_tape_record(tape)),
            paths.slots.data_ptr(),
            paths.nodes.data_ptr(),
            ctypes.addressof(cu),
            len(paths.cu) - 1,
            self._threads,
        )

    def _add_layer(self, args: DeltaArgs) -> _Layer:
        width = args.conv.shape[1]
        if width > MAX_TAPS:
            raise UnsupportedError(
                f"a convolution over {width} tokens; the CPU kernels go up to {MAX_TAPS}: "
                "run with --ops ref"
            )
        taps = args.conv.T.contiguous()  # f32 [W, C]
        vectors = [t.contiguous() for t in (args.a, args.dt_bias, args.norm)]
        record = DeltaRecord(
            taps=taps.data_ptr(),
            a=vectors[0].data_ptr(),
            dt_bias=vectors[1].data_ptr(),
            norm=vectors[2].data_ptr(),
            k_heads=args.k_heads,
            v_heads=args.v_heads,
            k_dim=args.k_dim,
            v_dim=args.v_dim,
            width=width,
            eps=args.eps,
        )
        layer = _Layer(args, (taps, *vectors), record, ctypes.addressof(record))
        self._layers[id(args)] = layer
        return layer


def _batch_of(batch: StepBatch) -> _Batch:
    cu_q = (ctypes.c_int32 * len(batch.cu_q))(*batch.cu_q)
    kinds = (ctypes.c_int32 * len(batch.kinds))(*(int(kind) for kind in batch.kinds))
    exact = sum(kind is RowKind.EXACT for kind in batch.kinds)
    several = batch.cu_q[exact] > exact  # exact rows come first, each of a token at least
    record = DeltaBatchRecord(
        row_of=batch.row_of.data_ptr(),
        slots=batch.slots.data_ptr(),
        parents=None if batch.parents is None else batch.parents.data_ptr(),
        cu_q=ctypes.addressof(cu_q),
        kinds=ctypes.addressof(kinds),
        tokens=batch.cu_q[-1],
        rows=len(batch.kinds),
    )
    taped = batch.cu_q[exact] if several else 0
    return _Batch(record, ctypes.addressof(record), (cu_q, kinds), taped)


def _new_tape(args: DeltaArgs, tokens: int) -> Tape:
    return Tape(
        k=torch.empty(tokens, args.k_heads, args.k_dim),
        delta=torch.empty(tokens, args.v_heads, args.v_dim),
        decay=torch.empty(tokens, args.v_heads),
        rows=torch.empty(tokens, args.channels),
    )


def _tape_record(tape: Tape) -> TapeRecord:
    return TapeRecord(
        k=tape.k.data_ptr(),
        delta=tape.delta.data_ptr(),
        decay=tape.decay.data_ptr(),
        rows=tape.rows.data_ptr(),
        tokens=len(tape.k),
    )
