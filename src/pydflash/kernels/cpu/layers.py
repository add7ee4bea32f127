"""The halves of a layer, one C call each: what would be five calls from Python, or four, is two."""

import ctypes

import torch

from pydflash.kernels.cpu.attention import Attention
from pydflash.kernels.cpu.delta import Delta
from pydflash.kernels.cpu.products import Products, act_number
from pydflash.kernels.cpu.records import AttnLayerRecord, DeltaLayerRecord, DenseLayerRecord
from pydflash.kernels.cpu.weights import packed_of
from pydflash.kernels.ops import (
    AttnLayer,
    DeltaLayer,
    DenseLayer,
    PagedKV,
    Recurrent,
    Span,
    StepBatch,
)

Tensor = torch.Tensor


class Layers:
    """Holds the record of every layer it has seen, and the layer with it."""

    def __init__(
        self,
        library: ctypes.CDLL,
        products: Products,
        attention: Attention,
        delta: Delta,
        threads: int,
    ) -> None:
        self._attention_layer = library.pf_attention_layer
        self._delta_layer = library.pf_delta_layer
        self._dense_layer = library.pf_dense_layer
        self._products = products
        self._attention = attention
        self._delta = delta
        self._threads = threads
        self._attn: dict[int, tuple[AttnLayer, int, AttnLayerRecord]] = {}
        self._recurrent: dict[int, tuple[DeltaLayer, int, DeltaLayerRecord]] = {}
        self._dense: dict[int, tuple[DenseLayer, int, DenseLayerRecord]] = {}

    def attention_layer(self, x: Tensor, layer: AttnLayer, kv: PagedKV, batch: StepBatch) -> Tensor:
        record = self._attn.get(id(layer)) or self._add_attn(layer)
        x = x.contiguous()
        pages, step = self._attention.addresses(kv, layer.args, batch)
        self._attention_layer(record[1], pages, step, x.data_ptr(), self._threads)
        return x

    def delta_layer(
        self, x: Tensor, layer: DeltaLayer, recurrent: Recurrent, batch: StepBatch
    ) -> Tensor:
        record = self._recurrent.get(id(layer)) or self._add_delta(layer)
        x = x.contiguous()
        tape, step = self._delta.begin(recurrent, layer.args, batch)
        self._delta_layer(
            record[1],
            recurrent.conv.data_ptr(),
            recurrent.state.data_ptr(),
            None if tape is None else ctypes.byref(tape),
            step,
            x.data_ptr(),
            self._threads,
        )
        return x

    def dense_layer(self, x: Tensor, layer: DenseLayer, spans: tuple[Span, ...]) -> Tensor:
        if not packed_of(layer.gate_up).halves_apart:
            products = self._products
            gated = products.norm_gated(x, layer.norm, layer.eps, layer.gate_up, layer.act, spans)
            return products.linear_add(gated, layer.down, x, spans)
        record = self._dense.get(id(layer)) or self._add_dense(layer)
        x = x.contiguous()
        self._dense_layer(record[1], x.data_ptr(), x.shape[0], self._threads)
        return x

    def _add_attn(self, layer: AttnLayer) -> tuple[AttnLayer, int, AttnLayerRecord]:
        record = AttnLayerRecord(
            qkv=packed_of(layer.qkv).address,
            output=packed_of(layer.output).address,
            norm=layer.norm.data_ptr(),
            args=self._attention.layer_address(layer.args),
            eps=layer.eps,
        )
        self._attn[id(layer)] = entry = (layer, ctypes.addressof(record), record)
        return entry

    def _add_delta(self, layer: DeltaLayer) -> tuple[DeltaLayer, int, DeltaLayerRecord]:
        record = DeltaLayerRecord(
            mixed=packed_of(layer.mixed).address,
            output=packed_of(layer.output).address,
            norm=layer.norm.data_ptr(),
            args=self._delta.layer_address(layer.args),
            eps=layer.eps,
        )
        self._recurrent[id(layer)] = entry = (layer, ctypes.addressof(record), record)
        return entry

    def _add_dense(self, layer: DenseLayer) -> tuple[DenseLayer, int, DenseLayerRecord]:
        record = DenseLayerRecord(
            gate_up=packed_of(layer.gate_up).address,
            down=packed_of(layer.down).address,
            norm=layer.norm.data_ptr(),
            eps=layer.eps,
            act=act_number(layer.act),
        )
        self._dense[id(layer)] = entry = (layer, ctypes.addressof(record), record)
        return entry
