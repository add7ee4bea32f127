"""The mixture-of-experts op: MoeArgs turned into a C record once, and one C call."""

import ctypes
from dataclasses import dataclass

import torch

from pydflash.kernels.cpu.products import act_number
from pydflash.kernels.cpu.records import MoeRecord
from pydflash.kernels.cpu.weights import packed_of
from pydflash.kernels.ops import MoeArgs, Span, Weight

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer's record and what it points into."""

    args: MoeArgs
    record: MoeRecord
    keep: tuple[object, ...]
    address: int


class Moe:
    """Callable form of `OpTable.moe`. Holds the records of the layers seen."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self._call = library.pf_moe
        self._threads = threads
        self._layers: dict[int, _Layer] = {}

    def __call__(
        self, x: Tensor, norm: Tensor, eps: float, args: MoeArgs, spans: tuple[Span, ...]
    ) -> Tensor:
        layer = self._layers.get(id(args)) or self._add_layer(args)
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty(x.shape)
        self._call(
            layer.address,
            x.data_ptr(),
            norm.data_ptr(),
            eps,
            x.shape[0],
            out.data_ptr(),
            self._threads,
        )
        return out

    def _add_layer(self, args: MoeArgs) -> _Layer:
        ups = _addresses([e.gate_up for e in args.experts])
        downs = _addresses([e.down for e in args.experts])
        shared, gate = args.shared, args.shared_gate
        gate = None if gate is None else gate.contiguous()
        firsts = [args.experts[0].gate_up] + ([] if shared is None else [shared.gate_up])
        record = MoeRecord(
            gate_up=ctypes.addressof(ups),
            down=ctypes.addressof(downs),
            router=packed_of(args.router).address,
            shared_gate_up=None if shared is None else packed_of(shared.gate_up).address,
            shared_down=None if shared is None else packed_of(shared.down).address,
            shared_gate=None if gate is None else gate.data_ptr(),
            used=args.used,
            sigmoid=int(args.sigmoid),
            normalise=int(args.normalise),
            act=act_number(args.act),
            apart=int(all(packed_of(w).halves_apart for w in firsts)),
            scale=args.scale,
        )
        layer = _Layer(args, record, (ups, downs, gate), ctypes.addressof(record))
        self._layers[id(args)] = layer
        return layer


def _addresses(weights: list[Weight]) -> "ctypes.Array[ctypes.c_void_p]":
    """Addresses of their C records."""
    return (ctypes.c_void_p * len(weights))(*(packed_of(w).address for w in weights))
