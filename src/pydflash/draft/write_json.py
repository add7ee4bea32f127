"""A DraftConfig as z-lab's config.json, with keys of ours for what it cannot say (docs/speculation.md)."""

import math
from collections.abc import Container as Names
from typing import Any

from pydflash.draft.config import DraftConfig
from pydflash.draft.read_json import CARD, FULL, SLIDING
from pydflash.draft.write_gguf_keys import check_causal, one_window
from pydflash.errors import UnsupportedError


def config_json(config: DraftConfig, names: Names[str]) -> dict[str, Any]:
    """The object to store. `names` are the drafter's canonical tensor names."""
    c = config
    check_causal(c, "config.json")
    window = one_window(c)
    values: dict[str, Any] = {
        "architectures": [_architecture(c)],
        "model_type": "qwen3",
        "hidden_size": c.hidden,
        "intermediate_size": c.ffn,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.eps,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "rope_theta": c.rope.base,
        "rope_scaling": _scaling(c),
        "vocab_size": c.vocab,
        "tie_word_embeddings": False,
        "layer_types": [FULL if w is None else SLIDING for w in c.windows],
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "block_size": c.block_size,
        "dflash_config": _own(c),
    }
    if len(set(c.causal)) == 1:
        values["is_causal"] = c.causal[0]
    if c.max_positions:
        values["max_position_embeddings"] = c.max_positions
    if c.rope.dims != c.head_dim:
        values["partial_rotary_factor"] = c.rope.dims / c.head_dim
    if c.rope.interleaved:
        values["is_neox_style"] = False
    if c.target_hidden != c.hidden:
        values["target_hidden_size"] = c.target_hidden
    if c.draft_vocab is not None:
        values["draft_vocab_size"] = c.draft_vocab
    if "target_layers" in c.card and c.card["target_layers"].isdecimal():
        values["num_target_layers"] = int(c.card["target_layers"])
    if c.card:
        values[CARD] = dict(c.card)
    return values


def _architecture(c: DraftConfig) -> str:
    if c.markov is not None:
        return "DSparkDraftModel"
    if c.domino is not None:
        return "DominoDraftModel"
    return (
        "DFlash2DraftModel" if c.conv is not None or c.selector is not None else "DFlashDraftModel"
    )


def _own(c: DraftConfig) -> dict[str, Any]:
    own: dict[str, Any] = {
        "target_layer_ids": list(c.target_layers),
        "mask_token_id": c.mask_token,
        "block_size": c.block_size,
    }
    if c.context_norm:
        own["context_kv_layer_norm"] = True
    if c.logit_softcap is not None:
        own["final_logit_softcapping"] = c.logit_softcap
    if c.logit_scale != 1.0:
        own["output_multiplier"] = c.logit_scale
    if c.conv is not None:
        own |= {"conv_kernel_size": c.conv.width, "conv_group_size": c.conv.group}
    if c.selector is not None:
        own |= {"selector_rank": c.selector.rank, "selector_top_k": c.selector.top_k}
    if c.markov is not None:
        own |= {
            "projector_type": "dspark",
            "markov_rank": c.markov.rank,
            "markov_head_type": "vanilla",
            "enable_confidence_head": c.markov.confidence,
            "confidence_head_with_markov": c.markov.confidence_with_markov,
        }
    if c.domino is not None:
        own |= {
            "projector_type": "domino",
            "gru_hidden_dim": c.domino.hidden,
            "emb_dim": c.domino.embedding,
            "pure_draft_prefix_len": c.domino.prefix,
            "shift_label": c.from_anchor,
        }
    elif c.from_anchor or c.markov is not None:
        own["sample_from_anchor"] = c.from_anchor
    return own


def _scaling(c: DraftConfig) -> dict[str, Any] | None:
    rope = c.rope
    if rope.scaling == "none":
        return None
    values: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "linear":
        return values
    if rope.ext_factor != 1.0:
        raise UnsupportedError(
            f"config.json cannot hold a yarn extrapolation of {rope.ext_factor}; "
            "write the drafter as dflash-draft GGUF"
        )
    values["original_max_position_embeddings"] = rope.original_ctx
    values |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
    if rope.attn_factor != 1.0:
        values["attention_factor"] = rope.attn_factor * (1 + 0.1 * math.log(rope.factor))
    return values
