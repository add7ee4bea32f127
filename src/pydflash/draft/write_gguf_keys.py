"""A DraftConfig as GGUF metadata: the seeds' dialect with our additions, and llama.cpp's."""

from collections.abc import Container as Names

from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.writer import Int32s
from pydflash.draft.config import DraftConfig
from pydflash.draft.read_gguf import CARD, LLAMA_CPP
from pydflash.errors import ConfigError, UnsupportedError

Keys = dict[str, object]


def seeds_keys(config: DraftConfig, arch: str) -> Keys:
    """Keys the seeds' readers know, and ours (docs/speculation.md) where they have no word."""
    c, own = config, f"{arch}.dflash."
    keys = _backbone(c, arch) | {
        own + "block_size": c.block_size,
        own + "mask_token_id": c.mask_token,
        own + "n_target_layers": len(c.target_layers),
        own + "n_target_features": len(c.target_layers) * c.target_hidden,
        own + "target_layer_ids": Int32s(c.target_layers),
    }
    if c.causal != _usual(c):
        keys[f"{arch}.attention.causal"] = list(c.causal)
    if len(set(c.causal)) == 1:
        keys[f"{arch}.attention.causal"] = c.causal[0]
    if c.rope.interleaved:
        keys[f"{arch}.rope.interleaved"] = True
    if c.target_hidden != c.hidden:
        keys[own + "target_hidden"] = c.target_hidden
    if c.from_anchor:
        keys[own + "sample_from_anchor"] = True
    if c.context_norm:
        keys[own + "context_kv_layer_norm"] = 1
    if c.logit_softcap is not None:
        keys[own + "logit_softcap"] = c.logit_softcap
    if c.logit_scale != 1.0:
        keys[own + "logit_scale"] = c.logit_scale
    return keys | _conditional(c, own, "dflash2.") | _card(c)


def llama_cpp_keys(config: DraftConfig, tokenizer: Meta, names: Names[str]) -> Keys:
    """Keys of architecture `dflash`. UnsupportedError for what that architecture has no word for.

    `names` are the drafter's canonical tensor names, `tokenizer` the target's metadata.
    """
    c, own = config, f"{LLAMA_CPP}."
    _check_llama_cpp(c, tokenizer, names)
    keys = _backbone(c, LLAMA_CPP) | {
        own + "block_size": c.block_size,
        "tokenizer.ggml.mask_token_id": c.mask_token,
        # It counts layer inputs.
        own + "target_layers": [layer + 1 for layer in c.target_layers],
    }
    if len(set(c.causal)) == 1:
        keys[own + "attention.causal"] = c.causal[0]
    if c.from_anchor or c.markov is not None:
        keys[own + "sample_from_anchor"] = c.from_anchor
    if c.markov is not None:
        keys[own + "has_confidence_head"] = c.markov.confidence
    if c.logit_softcap is not None:
        keys[own + "final_logit_softcapping"] = c.logit_softcap
    if c.logit_scale != 1.0:
        keys[own + "logit_scale"] = c.logit_scale
    return keys | _conditional(c, own, "") | _card(c)


def one_window(config: DraftConfig) -> int | None:
    """The window of the sliding layers. No container knows windows of different widths."""
    windows = {window for window in config.windows if window is not None}
    if len(windows) > 1:
        raise UnsupportedError(
            f"no drafter file can hold windows of {sorted(windows)} positions side by side; use one"
        )
    return windows.pop() if windows else None


def check_causal(config: DraftConfig, where: str) -> None:
    """Refuse a mixture of causal layers that neither a flag nor the rule (sliding ones are) can say."""
    if len(set(config.causal)) > 1 and config.causal != _usual(config):
        raise UnsupportedError(
            f"{where} cannot say which layers are causal inside the block ({list(config.causal)}); "
            "write the drafter as dflash-draft GGUF"
        )


def _backbone(c: DraftConfig, arch: str) -> Keys:
    at = f"{arch}."
    keys: Keys = {
        at + "context_length": c.max_positions,
        at + "embedding_length": c.hidden,
        at + "block_count": c.layers,
        at + "feed_forward_length": c.ffn,
        at + "attention.head_count": c.heads,
        at + "attention.head_count_kv": c.kv_heads,
        at + "attention.key_length": c.head_dim,
        at + "attention.value_length": c.head_dim,
        at + "attention.layer_norm_rms_epsilon": c.eps,
        at + "vocab_size": c.vocab,
        at + "rope.freq_base": c.rope.base,
        at + "rope.dimension_count": c.rope.dims,
    }
    window = one_window(c)
    if window is not None:
        keys[at + "attention.sliding_window"] = window
        keys[at + "attention.sliding_window_pattern"] = [w is not None for w in c.windows]
    if c.rope.scaling != "none":
        scaling = at + "rope.scaling."
        keys |= {scaling + "type": c.rope.scaling, scaling + "factor": c.rope.factor}
    if c.rope.scaling == "yarn":
        keys |= {
            scaling + "original_context_length": c.rope.original_ctx,
            scaling + "attn_factor": c.rope.attn_factor,
            scaling + "yarn_ext_factor": c.rope.ext_factor,
            scaling + "yarn_beta_fast": c.rope.beta_fast,
            scaling + "yarn_beta_slow": c.rope.beta_slow,
        }
    return keys


def _conditional(c: DraftConfig, own: str, dflash2: str) -> Keys:
    keys: Keys = {}
    if c.conv is not None:
        keys[f"{own}{dflash2}conv_kernel_size"] = c.conv.width
        keys[f"{own}{dflash2}conv_group_size"] = c.conv.group
    if c.selector is not None:
        keys[f"{own}{dflash2}selector_rank"] = c.selector.rank
        keys[f"{own}{dflash2}selector_top_k"] = c.selector.top_k
    if c.markov is not None and dflash2:
        keys |= {
            own + "dspark.enabled": 1,
            own + "dspark.markov_rank": c.markov.rank,
            own + "dspark.vocab_size": c.vocab,
        }
    if c.domino is not None:
        keys |= {
            own + "domino.enabled": 1,
            own + "domino.gru_hidden_dim": c.domino.hidden,
            own + "domino.emb_dim": c.domino.embedding,
            own + "domino.vocab_size": c.vocab,
            own + "domino.prefix": c.domino.prefix,
        }
    return keys


def _card(c: DraftConfig) -> Keys:
    return {CARD + key: value for key, value in c.card.items()}


def _usual(c: DraftConfig) -> tuple[bool, ...]:
    return tuple(window is not None for window in c.windows)


def _check_llama_cpp(c: DraftConfig, tokenizer: Meta, names: Names[str]) -> None:
    where = "llama.cpp's dialect"
    check_causal(c, where)
    wrong = {
        "a rope that turns neighbours": c.rope.interleaved,
        "a hidden size other than the target's": c.target_hidden != c.hidden,
        "norms of the context's keys and values": c.context_norm,
        "a Domino head": c.domino is not None,
        "convolutions without a selector": c.conv is not None and c.selector is None,
        "a selector of so many candidates for its hidden size": c.selector is not None
        and c.hidden < c.selector.top_k * (c.selector.top_k + 1),
        "a reduced vocabulary without a head": c.draft_vocab is not None
        and "output.weight" not in names,
        "a confidence head that does not read the Markov embedding": c.markov is not None
        and c.markov.confidence
        and not c.markov.confidence_with_markov,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise UnsupportedError(
                f"{where} cannot say that a drafter has {what}; write it as dflash-draft GGUF"
            )
    if "tokenizer.ggml.tokens" not in tokenizer:
        raise ConfigError(f"{tokenizer.name} has no tokenizer; name the target's GGUF file")
    tokens = tokenizer.entry("tokenizer.ggml.tokens").count
    if tokens != c.vocab:
        raise ConfigError(
            f"{tokenizer.name} has {tokens} tokens, the drafter's target {c.vocab}; "
            "name the GGUF file of its target"
        )
