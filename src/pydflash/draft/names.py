"""A drafter's tensor names in the three containers, against the canonical ones (draft.config).

Sources: z-lab's and SpecForge's modules for safetensors, llama.cpp's architecture `dflash`; the canonical
names are those of the seeds' GGUF files. Names in *italics* of docs/speculation.md are ours.
"""

import re
from typing import Literal

Container = Literal["safetensors", "seeds", "llama.cpp"]

# canonical, safetensors, llama.cpp; None where the container has no such tensor
_GLOBALS: tuple[tuple[str, str | None, str | None], ...] = (
    ("dflash.fc.weight", "fc.weight", "fc.weight"),
    ("dflash.hidden_norm.weight", "hidden_norm.weight", "enc.output_norm.weight"),
    ("output_norm.weight", "norm.weight", "output_norm.weight"),
    ("output.weight", "lm_head.weight", "output.weight"),
    ("d2t", "d2t", "d2t"),
    ("dflash.mask_embedding", "mask_embedding", None),
    (
        "dflash.selector.hproj.weight",
        "candidate_selector.hidden_projection.weight",
        "selector_hidden.weight",
    ),
    (
        "dflash.selector.pred_cb",
        "candidate_selector.predecessor_codebook",
        "selector_predecessor.weight",
    ),
    (
        "dflash.selector.succ_cb",
        "candidate_selector.successor_codebook",
        "selector_successor.weight",
    ),
    ("dflash.dspark.markov.w1", "markov_head.markov_w1.weight", "markov_w1.weight"),
    ("dflash.dspark.markov.w2", "markov_head.markov_w2.weight", "markov_w2.weight"),
    ("dflash.dspark.confidence.weight", "confidence_head.proj.weight", "conf_proj.weight"),
    ("dflash.dspark.confidence.bias", "confidence_head.proj.bias", "conf_proj.bias"),
    ("dflash.domino.start", "prefix_gru.start", None),
    ("dflash.domino.gru.weight_ih", "prefix_gru.weight_ih_l0", None),
    ("dflash.domino.gru.weight_hh", "prefix_gru.weight_hh_l0", None),
    ("dflash.domino.gru.bias_ih", "prefix_gru.bias_ih_l0", None),
    ("dflash.domino.gru.bias_hh", "prefix_gru.bias_hh_l0", None),
    ("dflash.domino.head.w1", "embed_proj.0.weight", None),
    ("dflash.domino.head.b1", "embed_proj.0.bias", None),
    ("dflash.domino.head.w2", "embed_proj.2.weight", None),
    ("dflash.domino.head.b2", "embed_proj.2.bias", None),
)
_LAYER: tuple[tuple[str, str | None, str | None], ...] = (
    ("attn_norm.weight", "input_layernorm.weight", "attn_norm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight", "attn_q.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight", "attn_k.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight", "attn_v.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight", "attn_output.weight"),
    ("attn_q.bias", "self_attn.q_proj.bias", None),
    ("attn_k.bias", "self_attn.k_proj.bias", None),
    ("attn_v.bias", "self_attn.v_proj.bias", None),
    ("attn_output.bias", "self_attn.o_proj.bias", None),
    ("attn_q_norm.weight", "self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("attn_gate.weight", "self_attn.g_proj.weight", None),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "ffn_norm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight", "ffn_gate.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight", "ffn_up.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight", "ffn_down.weight"),
    ("attn_conv.base", "attention_conv.base_kernel", "attn_conv_base"),
    ("attn_conv.proj.weight", "attention_conv.kernel_projection.weight", "attn_conv_proj.weight"),
    ("ffn_conv.base", "mlp_conv.base_kernel", "ffn_conv_base"),
    ("ffn_conv.proj.weight", "mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"),
)
# Other spellings of the same thing: a pattern in the file's name, and what it stands for.
_ALIASES: dict[Container, tuple[tuple[str, str], ...]] = {
    "safetensors": (
        (r"^model\.", ""),
        (r"^logit_head\.", ""),
        (r"^midlayer\.", "layers.0."),
        (r"^encoder\.fc\.", "fc."),
        (r"^encoder\.output_norm_enc\.", "hidden_norm."),
        (r"^mask_embedding\.weight$", "mask_embedding"),
        (r"_codebook\.weight$", "_codebook"),
    ),
    "seeds": (
        (r"^dflash_(fc|hidden_norm)\.", r"dflash.\1."),
        (r"^(blk\.\d+)\.post_attention_norm\.", r"\1.ffn_norm."),
    ),
    "llama.cpp": (),
}
_COLUMN: dict[Container, int] = {"seeds": 0, "safetensors": 1, "llama.cpp": 2}
_BLOCK: dict[Container, str] = {"seeds": "blk", "safetensors": "layers", "llama.cpp": "blk"}
_AUX: dict[Container, str | None] = {
    "seeds": "dflash.aux_hidden_norm",
    "safetensors": "aux_hidden_norms",
    "llama.cpp": None,
}
_SCALE = ".scale"


def to_canonical(container: Container, name: str) -> str:
    """The canonical name of a file's tensor, or the name itself when the container does not know it."""
    for pattern, repl in _ALIASES[container]:
        name = re.sub(pattern, repl, name)
    if container != "safetensors" and name.endswith(_SCALE):
        weight = to_canonical(container, name.removesuffix(_SCALE) + ".weight")
        return weight.removesuffix(".weight") + _SCALE
    found = re.fullmatch(rf"{_BLOCK[container]}\.(\d+)\.(.+)", name)
    if found:
        part = _inverse(_LAYER, container).get(found[2])
        return f"blk.{found[1]}.{part}" if part else name
    aux = re.fullmatch(rf"{re.escape(_AUX[container] or ' ')}\.(\d+)\.weight", name)
    if aux:
        return f"{_AUX['seeds']}.{aux[1]}.weight"
    return _inverse(_GLOBALS, container).get(name, name)


def from_canonical(container: Container, name: str) -> str | None:
    """The container's name of a canonical tensor; None when it has no place for it."""
    if name.endswith(_SCALE):
        weight = from_canonical(container, name.removesuffix(_SCALE) + ".weight")
        usable = weight is not None and container != "safetensors"
        return weight.removesuffix(".weight") + _SCALE if weight and usable else None
    column = _COLUMN[container]
    found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if found:
        part = next((row[column] for row in _LAYER if row[0] == found[2]), None)
        return f"{_BLOCK[container]}.{found[1]}.{part}" if part else None
    aux = re.fullmatch(rf"{re.escape(str(_AUX['seeds']))}\.(\d+)\.weight", name)
    if aux:
        return f"{_AUX[container]}.{aux[1]}.weight" if _AUX[container] else None
    return next((row[column] for row in _GLOBALS if row[0] == name), None)


def _inverse(
    rows: tuple[tuple[str, str | None, str | None], ...], container: Container
) -> dict[str, str]:
    column = _COLUMN[container]
    return {word: row[0] for row in rows if (word := row[column]) is not None}
