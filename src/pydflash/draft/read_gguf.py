"""DraftConfig from the metadata of a GGUF drafter: the seeds' dialect and llama.cpp's architecture `dflash`.

Nothing is guessed: block size, mask token, tapped layers and the rope's base must be stated.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pydflash.checkpoint.meta import Meta
from pydflash.draft.config import (
    ConvConfig,
    DominoConfig,
    DraftConfig,
    SelectorConfig,
)
from pydflash.draft.infer import (
    check_taps,
    domino_of,
    draft_vocab_of,
    markov_of,
    selector_rank,
)
from pydflash.draft.layout import Shapes
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.layers.rope import RopeSpec

SEEDS = ("qwen35-dflash-draft", "dflash-draft", "gemma4-dflash-draft")
LLAMA_CPP = "dflash"
CARD = "dflash.card."

# llama.cpp settings that change the network in ways that are not built, and the values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "hyper_connection.count": (0,),
    "embedding_scale": (0.0, 1.0),
    "attention.scale": (0.0,),
    "attention.value_scale": (0.0, 1.0),
    "hidden_act": ("silu",),
}


def read_seeds(meta: Meta, shapes: Shapes) -> tuple[DraftConfig, list[str]]:
    """Configuration and notes of a file in the seeds' dialect. `shapes` by canonical name."""
    read = _Read(meta, "{arch}.dflash.")
    notes: list[str] = []
    hidden = meta.int("{arch}.embedding_length")
    target_hidden = read.int("target_hidden", read.int("feat_dim_per_capture", hidden))
    ids = _ints(meta, "{arch}.dflash.target_layer_ids", "the target's layers it conditions on")
    taps = check_taps(meta.name, shapes, target_hidden, len(ids))
    stated = read.int("n_target_layers", taps)
    if stated != taps:
        notes.append(f"states {stated} target layers, its weights take {taps}: the weights count")
    windows = _windows(meta, ("{arch}.attention.sliding_window", "{arch}.dflash.sliding_window"))
    extras = any("attn_gate" in name or "aux_hidden_norm" in name for name in shapes)
    config = DraftConfig(
        **_backbone(meta, read, windows),
        mask_token=meta.int("{arch}.dflash.mask_token_id"),
        target_layers=tuple(ids),
        target_hidden=target_hidden,
        vocab=meta.int("{arch}.vocab_size"),
        from_anchor=read.flag("sample_from_anchor"),
        context_norm=read.flag("context_kv_layer_norm") or extras,
        logit_softcap=_f32(read.float("logit_softcap", 0.0)) or None,
        logit_scale=_f32(read.float("logit_scale", 1.0)),
        draft_vocab=draft_vocab_of(shapes),
        **_conditional(read, "dflash2.", shapes),
        card=_card(meta),
    )
    meta.ignore("{arch}.attention.value_length", "{arch}.dflash.n_target_features")
    meta.ignore("{arch}.dflash.*.enabled", "{arch}.dflash.*.vocab_size", "{arch}.dflash.dspark.*")
    meta.ignore("{arch}.dflash.draft_vocab_size")
    return config, notes + _unread(meta)


def read_llama_cpp(meta: Meta, shapes: Shapes) -> tuple[DraftConfig, list[str]]:
    """Configuration and notes of a file of architecture `dflash`.

    `dflash.target_layers` counts layer INPUTS there: the output of layer k is the input of k + 1.
    """
    for key, neutral in _NEUTRAL.items():
        value = meta.get(f"{{arch}}.{key}")
        if value is not None and value not in neutral:
            raise UnsupportedError(
                f"{meta.name}: drafters with {meta.arch}.{key} = {value} are not built yet"
            )
    read = _Read(meta, "{arch}.")
    hidden = meta.int("{arch}.embedding_length")
    inputs = _ints(meta, "{arch}.target_layers", "the target's layers it conditions on")
    if min(inputs) < 1:
        raise UnsupportedError(f"{meta.name} conditions on the target's embeddings: not built yet")
    check_taps(meta.name, shapes, hidden, len(inputs))
    if "d2t" in shapes and "output.weight" not in shapes:
        raise CheckpointError(
            f"{meta.name} reduces the vocabulary and lacks the tensor output.weight; convert it again"
        )
    markov = "dflash.dspark.markov.w1" in shapes
    config = DraftConfig(
        **_backbone(meta, read, _windows(meta, ("{arch}.attention.sliding_window",))),
        mask_token=meta.int("tokenizer.ggml.mask_token_id"),
        target_layers=tuple(i - 1 for i in inputs),
        target_hidden=hidden,
        vocab=_llama_vocab(meta),
        # llama.cpp's own default: DSpark drafts from the anchor on unless the file says otherwise
        from_anchor=read.flag("sample_from_anchor", default=markov),
        logit_softcap=_f32(read.float("final_logit_softcapping", 0.0)) or None,
        logit_scale=_f32(read.float("logit_scale", 0.0)) or 1.0,
        draft_vocab=draft_vocab_of(shapes),
        **_conditional(read, "", shapes),
        card=_card(meta),
    )
    meta.ignore("{arch}.attention.value_length", "{arch}.has_confidence_head", "{arch}.vocab_size")
    meta.ignore("{arch}.rope.dimension_sections", "{arch}.rope.scaling.finetuned")
    return config, _unread(meta)


class _Read:
    """Optional numbers below one prefix; flags may be booleans or 0 and 1."""

    def __init__(self, meta: Meta, prefix: str) -> None:
        self.meta = meta
        self.prefix = prefix

    def int(self, key: str, default: int) -> int:
        return self.meta.int(self.prefix + key, default=default)

    def float(self, key: str, default: float) -> float:
        return self.meta.float(self.prefix + key, default=default)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.meta.get(self.prefix + key)
        return default if value is None else bool(value)


def _backbone(meta: Meta, read: _Read, windows: tuple[int | None, ...]) -> dict[str, Any]:
    head_dim = meta.int("{arch}.attention.key_length")
    causal = meta.get("{arch}.attention.causal")
    return {
        "hidden": meta.int("{arch}.embedding_length"),
        "ffn": meta.int("{arch}.feed_forward_length"),
        "layers": len(windows),
        "heads": meta.int("{arch}.attention.head_count"),
        "kv_heads": meta.int("{arch}.attention.head_count_kv"),
        "head_dim": head_dim,
        "eps": _f32(meta.float("{arch}.attention.layer_norm_rms_epsilon", default=1e-6)),
        "rope": _rope(meta, head_dim),
        "block_size": meta.int(read.prefix + "block_size"),
        "windows": windows,
        "causal": _causal(meta, causal, windows),
        "max_positions": meta.int("{arch}.context_length", default=0),
    }


def _causal(meta: Meta, stated: object, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    if isinstance(stated, list):
        return meta.per_layer_bool("{arch}.attention.causal", len(windows))
    if stated is not None:
        return (bool(stated),) * len(windows)
    return tuple(window is not None for window in windows)


def _windows(meta: Meta, keys: tuple[str, ...]) -> tuple[int | None, ...]:
    """Of each layer. A window without a statement which layers slide is refused."""
    layers = meta.int("{arch}.block_count")
    if not 0 < layers <= 1024:
        raise CheckpointError(f"{meta.name} states {layers} layers; download or convert it again")
    window = next((w for key in keys if (w := meta.int(key, default=0))), 0)
    pattern = meta.get("{arch}.attention.sliding_window_pattern")
    if not window and not (isinstance(pattern, list) and any(pattern)):
        return (None,) * layers
    if not isinstance(pattern, list) or len(pattern) != layers or window <= 0:
        raise CheckpointError(
            f"{meta.name} has a sliding window of {window} and the pattern {pattern} for {layers} layers; "
            f"{meta.arch}.attention.sliding_window_pattern must say for each layer whether it slides: "
            "convert it again, with --swa"
        )
    return tuple(window if slides else None for slides in pattern)


def _rope(meta: Meta, head_dim: int) -> RopeSpec:
    key = "{arch}.rope.scaling."
    kind = meta.str(key + "type", default="none")
    plain = RopeSpec(
        dims=meta.int("{arch}.rope.dimension_count", default=head_dim),
        base=_f32(meta.float("{arch}.rope.freq_base")),
        interleaved=bool(meta.get("{arch}.rope.interleaved") or False),
    )
    if kind == "none":
        meta.ignore(key + "*")
        return plain
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(f"{meta.name}: rope scaling {kind!r} is not built yet")
    factor = _f32(meta.float(key + "factor"))
    if kind == "linear":
        return replace(plain, scaling="linear", factor=factor)
    attn = meta.float(key + "attn_factor", default=meta.float(key + "yarn_attn_factor", default=1))
    return replace(
        plain,
        scaling="yarn",
        factor=factor,
        original_ctx=meta.int(key + "original_context_length"),
        attn_factor=_f32(attn),
        ext_factor=_f32(meta.float(key + "yarn_ext_factor", default=1.0)),
        beta_fast=_f32(meta.float(key + "yarn_beta_fast", default=32.0)),
        beta_slow=_f32(meta.float(key + "yarn_beta_slow", default=1.0)),
    )


def _conditional(read: _Read, dflash2: str, shapes: Shapes) -> dict[str, Any]:
    """Convolutions and heads: there when a tensor of theirs is; sizes from keys, else from the tensors."""
    found: dict[str, Any] = {"markov": markov_of(shapes), "domino": None}
    if any("_conv." in name for name in shapes):
        found["conv"] = ConvConfig(
            width=read.int(dflash2 + "conv_kernel_size", 2),
            group=read.int(dflash2 + "conv_group_size", 16),
        )
    if any(name.startswith("dflash.selector.") for name in shapes):
        found["selector"] = SelectorConfig(
            rank=read.int(dflash2 + "selector_rank", selector_rank(shapes)),
            top_k=read.int(dflash2 + "selector_top_k", 16),
        )
    if domino := domino_of(shapes, prefix=1):
        found["domino"] = DominoConfig(
            hidden=read.int("domino.gru_hidden_dim", domino.hidden),
            embedding=read.int("domino.emb_dim", domino.embedding),
            prefix=read.int("domino.prefix", domino.prefix),
        )
    return found


def _ints(meta: Meta, key: str, what: str) -> list[int]:
    values = meta.ints(key)
    if not values:
        raise CheckpointError(f"{meta.name} does not name {what}; download or convert it again")
    return values


def _llama_vocab(meta: Meta) -> int:
    stated = meta.int("{arch}.vocab_size", default=0)
    if not stated and "tokenizer.ggml.tokens" in meta:
        return meta.entry("tokenizer.ggml.tokens").count
    return stated or meta.int("{arch}.vocab_size")


def _card(meta: Meta) -> dict[str, str]:
    keys = [key for key in meta if key.startswith(CARD)]
    return {key.removeprefix(CARD): meta.str(key) for key in keys}


def _unread(meta: Meta) -> list[str]:
    return [f"{key} is not understood and left out" for key in meta.unread()]


def _f32(value: float) -> float:
    """The shortest decimal that the file's float32 stands for: 1e-06, not 9.99999997e-07."""
    return float(str(np.float32(value)))
