"""tiny_gguf: a complete small model file with random weights, written by the official package."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from tests.tiny.blocks import pack
from tests.tiny.qwen35 import (
    DeltaShape,
    MoeShape,
    delta_keys,
    delta_weights,
    moe_keys,
    moe_weights,
)
from tests.tiny.vocabulary import CHATML, ENDOFTEXT, IM_END, IM_START, tiny_vocabulary

ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe")
HYBRID = ("qwen35", "qwen35moe")
EXPERTS = ("qwen3moe", "qwen35moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape:
    """Sizes of a tiny model."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 320
    delta: DeltaShape = field(default_factory=DeltaShape)
    moe: MoeShape = field(default_factory=MoeShape)


def tiny_gguf(
    path: Path,
    arch: str = "llama",
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 96,
    vocab: int = 320,
    context: int = 512,
    formats: str | Mapping[str, str] = "F32",
    tied: bool = False,
    bias: bool = False,
    rope: Mapping[str, Any] | None = None,
    rope_factors: bool = False,
    extra: Mapping[str, Any] | None = None,
    omit: tuple[str, ...] = (),
    seed: int = 0,
    delta: DeltaShape | None = None,
    moe: MoeShape | None = None,
) -> Path:
    """Write a model file to `path` and return it.

    `formats`: one format name for every matrix, or patterns of tensor names to format names, first match
    wins ("*" last; default F32). Vectors, convolutions and routers are always F32. `rope`: metadata below
    `{arch}.rope.`, for instance {"freq_base": 5e5, "scaling.type": "yarn", "scaling.factor": 4.0}.
    `rope_factors` adds `rope_freqs.weight`, as llama 3 files have it. `extra` adds or overrides metadata
    keys, `omit` leaves metadata keys or tensors (patterns) out. `delta` and `moe` size hybrids and
    mixtures; a hybrid of one layer is all attention.
    """
    shape = TinyShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        delta=delta or DeltaShape(interval=min(2, layers)),
        moe=moe or MoeShape(shared=0 if arch == "qwen3moe" else 32),
    )
    rng = np.random.default_rng(seed)
    weights = tiny_weights(arch, shape, rng, tied=tied, bias=bias)
    if rope_factors:
        weights["rope_freqs.weight"] = np.linspace(1, 8, head_dim // 2, dtype=np.float32)
    keys = _metadata(arch, shape, context) | _tokenizer(arch, vocab)
    keys |= {f"{arch}.rope.{key}": value for key, value in (rope or {}).items()}
    keys |= extra or {}

    writer = GGUFWriter(path, arch)
    for key, value in keys.items():
        if not any(fnmatchcase(key, pattern) for pattern in omit):
            _add(writer, key, value)
    for name, values in weights.items():
        if any(fnmatchcase(name, pattern) for pattern in omit):
            continue
        small = values.ndim == 1 or any(part in name for part in ("conv1d", "ffn_gate_inp"))
        chosen = "F32" if small else _format_of(name, formats)
        data = pack(values, chosen, rng)
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[chosen])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_weights(
    arch: str,
    shape: TinyShape,
    rng: np.random.Generator,
    *,
    tied: bool = False,
    bias: bool = False,
) -> dict[str, np.ndarray]:
    """Random float32 weights under their GGUF names, scaled so that activations stay near 1."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"no tiny model for {arch}")
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def matrix(rows: int, cols: int, *count: int) -> np.ndarray:
        return (rng.standard_normal((*count, rows, cols)) / np.sqrt(cols)).astype(np.float32)

    def vector(size: int, mean: float) -> np.ndarray:
        return (mean + 0.1 * rng.standard_normal(size)).astype(np.float32)

    weights = {"token_embd.weight": matrix(shape.vocab, shape.hidden) * np.float32(8)}
    weights["output_norm.weight"] = vector(shape.hidden, 1)
    if not tied:
        weights["output.weight"] = matrix(shape.vocab, shape.hidden)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        weights[at + "attn_norm.weight"] = vector(shape.hidden, 1)
        if arch in HYBRID and (layer + 1) % shape.delta.interval:
            weights |= delta_weights(at, shape.hidden, shape.delta, matrix, vector)
        else:
            packed = 2 * query if arch in HYBRID else query  # [q | gate] of each head
            for name, rows in (("attn_q", packed), ("attn_k", key_value), ("attn_v", key_value)):
                weights[f"{at}{name}.weight"] = matrix(rows, shape.hidden)
                if bias:
                    weights[f"{at}{name}.bias"] = vector(rows, 0)
            weights[at + "attn_output.weight"] = matrix(shape.hidden, query)
            if arch != "llama":
                weights[at + "attn_q_norm.weight"] = vector(shape.head_dim, 1)
                weights[at + "attn_k_norm.weight"] = vector(shape.head_dim, 1)
        norm = "post_attention_norm" if arch in HYBRID else "ffn_norm"
        weights[f"{at}{norm}.weight"] = vector(shape.hidden, 1)
        if arch in EXPERTS:
            weights |= moe_weights(at, shape.hidden, shape.moe, matrix, vector)
            continue
        weights[at + "ffn_gate.weight"] = matrix(shape.ffn, shape.hidden)
        weights[at + "ffn_up.weight"] = matrix(shape.ffn, shape.hidden)
        weights[at + "ffn_down.weight"] = matrix(shape.hidden, shape.ffn)
    return weights


def _metadata(arch: str, shape: TinyShape, context: int) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5 if arch == "llama" else 1e-6,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.freq_base": 10000.0 if arch == "llama" else 1000000.0,
        "rope.dimension_count": shape.head_dim,
    }
    if arch == "llama":
        keys["vocab_size"] = shape.vocab
    if arch in HYBRID:
        keys |= delta_keys(shape.delta, shape.head_dim)
    if arch in EXPERTS:
        keys |= moe_keys(shape.moe)
    named = {"general.name": f"Tiny {arch}", "general.type": "model", "general.file_type": 0}
    return named | {f"{arch}.{key}": value for key, value in keys.items()}


def _tokenizer(arch: str, vocab: int) -> dict[str, Any]:
    vocabulary = tiny_vocabulary(vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm"
        if arch == "llama"
        else "qwen35"
        if arch in HYBRID
        else "qwen2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": IM_START,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.padding_token_id": ENDOFTEXT,
        "tokenizer.ggml.unknown_token_id": ENDOFTEXT,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def _format_of(name: str, formats: str | Mapping[str, str]) -> str:
    if isinstance(formats, str):
        return formats
    return next((f for pattern, f in formats.items() if fnmatchcase(name, pattern)), "F32")


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
