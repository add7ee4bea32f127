"""The C records of the CPU library as ctypes structures: same fields, same order as src/layout.h."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class Segment(ctypes.Structure):
    """Rows of one format inside a merged weight."""

    _fields_ = (
        ("data", c_void_p),
        ("panel_bytes", c_int64),
        ("format", c_int32),
        ("rows", c_int32),
        ("row0", c_int32),
        ("panels", c_int32),
    )


class WeightRecord(ctypes.Structure):
    """A merged weight: segments in row order."""

    _fields_ = (
        ("segments", ctypes.POINTER(Segment)),
        ("bias", c_void_p),
        ("count", c_int32),
        ("rows", c_int32),
        ("cols", c_int32),
        ("panels", c_int32),
        ("scale", c_void_p),
    )


class KVRecord(ctypes.Structure):
    """One layer's pages."""

    _fields_ = (
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("k_format", c_int32),
        ("v_format", c_int32),
    )


class AttnRecord(ctypes.Structure):
    """What is fixed about an attention layer. `window` and `softcap` are 0 for none."""

    _fields_ = (
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope_dims", c_int32),
        ("interleaved", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("eps", c_float),
        ("softcap", c_float),
        ("gated", c_int32),
        ("causal", c_int32),
    )


class AttnLayerRecord(ctypes.Structure):
    """The attention half of a layer."""

    _fields_ = (
        ("qkv", c_void_p),
        ("output", c_void_p),
        ("norm", c_void_p),
        ("args", c_void_p),
        ("eps", c_float),
    )


class DenseLayerRecord(ctypes.Structure):
    """The dense feed-forward half of a layer."""

    _fields_ = (
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("norm", c_void_p),
        ("eps", c_float),
        ("act", c_int32),
    )


class DeltaLayerRecord(ctypes.Structure):
    """The Gated DeltaNet half of a layer."""

    _fields_ = (
        ("mixed", c_void_p),
        ("output", c_void_p),
        ("norm", c_void_p),
        ("args", c_void_p),
        ("eps", c_float),
    )


class BatchRecord(ctypes.Structure):
    """One step: pointers into the tensors of a StepBatch."""

    _fields_ = (
        ("positions", c_void_p),
        ("row_of", c_void_p),
        ("base", c_void_p),
        ("page_table", c_void_p),
        ("write_slots", c_void_p),
        ("ancestors", c_void_p),
        ("cu_q", c_void_p),
        ("kinds", c_void_p),
        ("first", c_void_p),
        ("tokens", c_int32),
        ("rows", c_int32),
        ("pages_per_row", c_int32),
        ("ancestor_cols", c_int32),
    )


class DeltaRecord(ctypes.Structure):
    """What is fixed about a Gated DeltaNet layer."""

    _fields_ = (
        ("taps", c_void_p),
        ("a", c_void_p),
        ("dt_bias", c_void_p),
        ("norm", c_void_p),
        ("k_heads", c_int32),
        ("v_heads", c_int32),
        ("k_dim", c_int32),
        ("v_dim", c_int32),
        ("width", c_int32),
        ("eps", c_float),
    )


class DeltaBatchRecord(ctypes.Structure):
    """What recurrent layers need of a step."""

    _fields_ = (
        ("row_of", c_void_p),
        ("slots", c_void_p),
        ("parents", c_void_p),
        ("cu_q", c_void_p),
        ("kinds", c_void_p),
        ("tokens", c_int32),
        ("rows", c_int32),
    )


class TapeRecord(ctypes.Structure):
    """The tape of a step's first `tokens` tokens."""

    _fields_ = (
        ("k", c_void_p),
        ("delta", c_void_p),
        ("decay", c_void_p),
        ("rows", c_void_p),
        ("tokens", c_int32),
    )


class MoeRecord(ctypes.Structure):
    """What is fixed about a mixture of experts: addresses of weight records."""

    _fields_ = (
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("router", c_void_p),
        ("shared_gate_up", c_void_p),
        ("shared_down", c_void_p),
        ("shared_gate", c_void_p),
        ("used", c_int32),
        ("sigmoid", c_int32),
        ("normalise", c_int32),
        ("act", c_int32),
        ("apart", c_int32),
        ("scale", c_float),
    )


def layout_number() -> int:
    """What `pf_layout()` must answer if the library and these records agree on their sizes."""
    sizes = (
        (Segment, 1),
        (WeightRecord, 3),
        (KVRecord, 5),
        (AttnRecord, 7),
        (BatchRecord, 11),
        (DeltaRecord, 13),
        (DeltaBatchRecord, 17),
        (TapeRecord, 19),
        (MoeRecord, 23),
        (AttnLayerRecord, 29),
        (DenseLayerRecord, 31),
        (DeltaLayerRecord, 37),
    )
    return sum(ctypes.sizeof(record) * factor for record, factor in sizes)
