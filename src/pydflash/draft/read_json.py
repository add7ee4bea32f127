"""DraftConfig from the config.json beside a safetensors drafter: z-lab's form and that of `speculators`.

z-lab's has Qwen3's keys at the top and `dflash_config` below; the other nests Qwen3's keys in
`transformer_layer_config`. Nothing is guessed: block size, mask token, tapped layers, the rope's base and
whether a DSpark block drafts from its anchor must be stated.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydflash.draft.config import ConvConfig, DraftConfig, SelectorConfig
from pydflash.draft.infer import check_taps, domino_of, draft_vocab_of, markov_of, selector_rank
from pydflash.draft.layout import Shapes
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.layers.rope import RopeSpec

CARD = "dflash_card"
SLIDING = "sliding_attention"
FULL = "full_attention"

# Settings that change the network in ways that are not built, and the values that change nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_sink_bias": (False,),
    "markov_head_type": ("vanilla",),
    "input_embedding_scale": (1,),
    "attention_value_scale": (1,),
}
# What else `dflash_config` may hold: training's own, or implied by the tensors.
_IGNORED = frozenset(
    (
        "attention_mode",
        "confidence_head_alpha",
        "confidence_head_with_markov",
        "emb_dim",
        "enable_confidence_head",
        "gru_hidden_dim",
        "markov_rank",
        "n_target_layers",
        "num_target_layers",
        "projector_type",
        "use_aux_hidden_state",
    )
)


def read_json(
    values: Mapping[str, Any], shapes: Shapes, name: str
) -> tuple[DraftConfig, list[str]]:
    """Configuration and notes. `shapes` by canonical name; `name` is what messages call the drafter."""
    keys = _Keys(values, name)
    for key, neutral in _NEUTRAL.items():
        value = keys.get(key)
        if value is not None and value not in neutral:
            raise UnsupportedError(f"{name}: drafters with {key} = {value!r} are not built yet")
    hidden, heads = keys.int("hidden_size"), keys.int("num_attention_heads")
    if heads < 1:
        raise CheckpointError(f"{name}: num_attention_heads is {heads}; fetch config.json again")
    head_dim = keys.int("head_dim", hidden // heads)
    target_hidden = keys.int("target_hidden_size", hidden)
    windows, ids = _windows(keys), _target_layers(keys)
    check_taps(name, shapes, target_hidden, len(ids))
    config = DraftConfig(
        hidden=hidden,
        ffn=keys.int("intermediate_size"),
        layers=len(windows),
        heads=heads,
        kv_heads=keys.int("num_key_value_heads"),
        head_dim=head_dim,
        eps=keys.float("rms_norm_eps", 1e-6),
        rope=_rope(keys, head_dim),
        block_size=_block_size(keys),
        mask_token=keys.int("mask_token_id"),
        target_layers=ids,
        target_hidden=target_hidden,
        vocab=keys.int("vocab_size"),
        windows=windows,
        causal=_causal(keys, windows),
        from_anchor=_from_anchor(keys, shapes),
        context_norm=bool(keys.get("context_kv_layer_norm"))
        or any("attn_gate" in key or "aux_hidden_norm" in key for key in shapes),
        logit_softcap=keys.float("final_logit_softcapping", 0.0) or None,
        logit_scale=keys.float("output_multiplier", keys.float("logit_scale", 1.0)),
        max_positions=keys.int("max_position_embeddings", 0),
        draft_vocab=draft_vocab_of(shapes),
        markov=markov_of(shapes),
        domino=domino_of(shapes, prefix=keys.int("pure_draft_prefix_len", 0)),
        **_dflash2(keys, shapes),
        card=_card(keys),
    )
    return config, keys.unread()


class _Keys:
    """Keys of config.json, wherever its form puts them; remembers which of `dflash_config` were read."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.own = _table(values, "dflash_config", name)
        self.layers = _table(values, "transformer_layer_config", name)
        self.top = values
        self.speculators = bool(self.layers) or "speculators_model_type" in values
        self._read: set[str] = set()

    def get(self, *names: str) -> Any:
        """The first of `names` that is stated (null is not), in the three tables in turn."""
        self._read.update(names)
        for table in (self.own, self.top, self.layers):
            for name in names:
                if table.get(name) is not None:
                    return table[name]
        return None

    def int(self, name: str, default: int | None = None) -> int:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.bad(name, value)
        return value

    def float(self, name: str, default: float | None = None) -> float:
        value = self.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.bad(name, value)
        if not math.isfinite(value):
            raise self.bad(name, value)
        return float(value)

    def bad(self, name: str, value: Any) -> CheckpointError:
        if value is None:
            return CheckpointError(
                f"{self.name}: config.json does not state {name}, and it cannot be guessed; "
                "fetch the drafter's config.json again or add the key"
            )
        return CheckpointError(
            f"{self.name}: config.json has {name} = {value!r}, which cannot be; fetch it again"
        )

    def unread(self) -> list[str]:
        left = sorted(set(self.own) - self._read - _IGNORED)
        return [f"dflash_config.{key} is not understood and left out" for key in left]


def _table(values: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    found = values.get(key) or {}
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{name}: {key} in config.json is not an object; fetch it again")
    return found


def _target_layers(keys: _Keys) -> tuple[int, ...]:
    own = keys.get("target_layer_ids")
    # vLLM and speculators count the embedding's output as 0.
    value = own if own is not None else keys.get("aux_hidden_state_layer_ids")
    if not isinstance(value, list) or not all(type(v) is int for v in value) or not value:
        raise keys.bad("target_layer_ids", value)
    return tuple(value if own is not None else (v - 1 for v in value))


def _block_size(keys: _Keys) -> int:
    stated = {
        repr(value)
        for table in (keys.own, keys.top)
        for key in ("block_size", "draft_block_size")
        if (value := table.get(key)) is not None
    }
    if len(stated) > 1:
        raise CheckpointError(
            f"{keys.name}: config.json states the block sizes {' and '.join(sorted(stated))}; keep one"
        )
    return keys.int("draft_block_size" if keys.get("block_size") is None else "block_size")


def _windows(keys: _Keys) -> tuple[int | None, ...]:
    layers = keys.int("num_hidden_layers")
    if not 0 < layers <= 1024:
        raise keys.bad("num_hidden_layers", layers)
    slides, key = _sliding(keys, layers), "sliding_window"
    if not any(slides):
        return (None,) * layers
    if keys.get("swa_window_size") is not None:
        key = "swa_window_size"
    window = keys.int(key)
    if window <= 0 or keys.top.get("use_sliding_window") is False:
        raise CheckpointError(
            f"{keys.name}: layers slide, but the window is {window} and use_sliding_window is "
            f"{keys.top.get('use_sliding_window')}; correct config.json"
        )
    return tuple(window if one else None for one in slides)


def _sliding(keys: _Keys, layers: int) -> list[bool]:
    types = keys.get("layer_types")
    if keys.get("use_swa"):
        return [True] * layers
    if types is None:
        # Qwen3's own rule; its default for max_window_layers is 28.
        after = keys.int("max_window_layers", 28)
        return [bool(keys.get("use_sliding_window")) and i >= after for i in range(layers)]
    known = isinstance(types, list) and all(kind in (SLIDING, FULL) for kind in types)
    if not known or len(types) != layers:
        raise keys.bad("layer_types", types)
    return [kind == SLIDING for kind in types]


def _causal(keys: _Keys, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """`is_causal` wins over `causal`, which wins over: sliding layers are, full ones are not."""
    stated = keys.top.get("is_causal")
    stated = keys.get("causal") if stated is None else stated
    if stated is not None:
        return (bool(stated),) * len(windows)
    free = bool(keys.get("sliding_window_non_causal"))
    return tuple(window is not None and not free for window in windows)


def _from_anchor(keys: _Keys, shapes: Shapes) -> bool:
    """Whether slot j predicts the token behind it: a wrong choice loads cleanly and is off by one."""
    stated = keys.get("sample_from_anchor", "shift_label")
    if stated is not None:
        return bool(stated)
    if not any(name.startswith("dflash.dspark.") for name in shapes):
        return False
    if keys.speculators or keys.top.get("architectures") == ["Qwen3DSparkModel"]:
        return True  # their classes' own default
    raise keys.bad("sample_from_anchor", None)


def _dflash2(keys: _Keys, shapes: Shapes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if any("_conv." in name for name in shapes):
        found["conv"] = ConvConfig(
            width=keys.int("conv_kernel_size", 2), group=keys.int("conv_group_size", 16)
        )
    if any(name.startswith("dflash.selector.") for name in shapes):
        rank = keys.int("selector_rank", selector_rank(shapes))
        found["selector"] = SelectorConfig(rank=rank, top_k=keys.int("selector_top_k", 16))
    keys.get("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    return found


def _rope(keys: _Keys, head_dim: int) -> RopeSpec:
    nested = keys.get("rope_parameters", "rope_scaling")
    scaling: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
    base = scaling.get("rope_theta", keys.get("rope_theta"))
    if not isinstance(base, (int, float)) or isinstance(base, bool):
        raise keys.bad("rope_theta", base)
    neox = keys.get("is_neox_style", "rope_is_neox_style")
    stated = keys.float("partial_rotary_factor", 1.0)
    partial = _number(keys, scaling, "partial_rotary_factor", stated)
    plain = RopeSpec(
        dims=round(head_dim * partial),
        base=float(base),
        interleaved=neox is not None and not neox,
    )
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("default", "mrope"):
        return plain
    if kind not in ("linear", "yarn"):
        raise UnsupportedError(f"{keys.name}: rope scaling {kind!r} is not built yet")
    factor = _number(keys, scaling, "factor", None)
    if kind == "linear":
        return replace(plain, scaling="linear", factor=factor)
    original = scaling.get("original_max_position_embeddings")
    if original is not None and type(original) is not int:
        raise keys.bad("original_max_position_embeddings", original)
    return replace(
        plain,
        scaling="yarn",
        factor=factor,
        original_ctx=original or keys.int("max_position_embeddings"),
        attn_factor=_yarn_magnitude(keys, scaling, factor),
        beta_fast=_number(keys, scaling, "beta_fast", 32.0),
        beta_slow=_number(keys, scaling, "beta_slow", 1.0),
    )


def _yarn_magnitude(keys: _Keys, scaling: Mapping[str, Any], factor: float) -> float:
    """transformers states the whole magnitude, `RopeSpec` what it is beyond 1 + ln(factor) / 10."""
    if scaling.get("truncate") is False or "mscale" in scaling or "mscale_all_dim" in scaling:
        raise UnsupportedError(
            f"{keys.name}: yarn with truncate = false or mscale is not built yet"
        )
    usual = 1 + 0.1 * math.log(factor) if factor > 0 else 1.0
    whole = _number(keys, scaling, "attention_factor", usual)
    return 1.0 if whole == usual else whole / usual


def _number(keys: _Keys, table: Mapping[str, Any], name: str, default: float | None) -> float:
    value = table.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise keys.bad(f"rope_parameters.{name}", value)
    return float(value)


def _card(keys: _Keys) -> dict[str, str]:
    """Our own table, and what other forms say of the target."""
    card = {str(k): str(v) for k, v in _table(keys.top, CARD, keys.name).items()}
    speculators = _table(keys.top, "speculators_config", keys.name)
    verifier = _table(speculators, "verifier", keys.name)
    if verifier.get("name_or_path"):
        card.setdefault("target", str(verifier["name_or_path"]))
    if keys.top.get("num_target_layers") is not None:
        card.setdefault("target_layers", str(keys.top["num_target_layers"]))
    return card
