"""The oracle for the Qwen3.5 family: a random `transformers` model, moved to GGUF by a converter of our own.

The converter goes the other way round than the files of the wild were made, from facts about the format:
norm weights are stored plus one, `ssm_a` is -exp(A_log), and value heads are stored so that head h reads key
head h mod Hk, where `transformers` has it read h div (Hv / Hk).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter

Tensor = torch.Tensor

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}


def random_model(*, experts: bool, tied: bool = False, seed: int = 0) -> Any:
    """A tiny Qwen3_5ForCausalLM or Qwen3_5MoeForCausalLM with weights that matter everywhere."""
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [3, 3, 2],
        },
    }
    if experts:
        sizes |= {"num_experts": 6, "num_experts_per_tok": 2}
        sizes |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
        config: Any = transformers.Qwen3_5MoeTextConfig(**sizes)
        model: Any = transformers.Qwen3_5MoeForCausalLM(config)
    else:
        config = transformers.Qwen3_5TextConfig(**sizes, intermediate_size=96)
        model = transformers.Qwen3_5ForCausalLM(config)
    config._attn_implementation = "eager"
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            _randomise(name, parameter)
    return model.eval()


def write_gguf(model: Any, path: Path) -> Path:
    """The model as an F32 GGUF file with the metadata real files carry."""
    config = model.config
    experts = hasattr(config, "num_experts")
    arch = "qwen35moe" if experts else "qwen35"
    writer = GGUFWriter(path, arch)
    for key, value in _keys(config, experts).items():
        add: Callable[[str, Any], None] = writer.add_uint32
        if isinstance(value, float):
            add = writer.add_float32
        elif isinstance(value, list):
            add = writer.add_array
        add(f"{arch}.{key}", value)
    for name, values in _tensors(model.state_dict(), config).items():
        writer.add_tensor(name, np.ascontiguousarray(values.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _randomise(name: str, p: Tensor) -> None:
    if name.endswith("A_log"):
        p.copy_(torch.empty_like(p).uniform_(0.05, 4).log())
    elif name.endswith("linear_attn.norm.weight"):
        p.copy_(1 + 0.1 * torch.randn_like(p))
    elif p.dim() == 1:  # norms are zero-centred here
        p.copy_(0.1 * torch.randn_like(p))
    elif "embed_tokens" in name:
        p.copy_(torch.randn_like(p))
    elif "conv1d" in name:
        p.copy_(torch.randn_like(p) / 2)
    else:
        p.copy_(torch.randn_like(p) / p.shape[-1] ** 0.5)


def _keys(config: Any, experts: bool) -> dict[str, Any]:
    rope = config.rope_parameters
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "full_attention_interval": config.layer_types.index("full_attention") + 1,
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.group_count": config.linear_num_key_heads,
    }
    if not experts:
        return keys | {"feed_forward_length": config.intermediate_size}
    return keys | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
    }


def _tensors(state: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
    out = {}
    for name, values in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name in _TOP:
            target, rest = _TOP[name], name
        else:
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            target = f"blk.{layer}.{_LAYER[rest]}"
        out[target] = _converted(rest, values, config)
    return out


def _converted(name: str, values: Tensor, config: Any) -> Tensor:
    Hk, Hv = config.linear_num_key_heads, config.linear_num_value_heads
    Dv, keys = config.linear_value_head_dim, 2 * Hk * config.linear_key_head_dim

    def tiled(heads: Tensor, size: int) -> Tensor:
        """Rows of Hv heads of `size` each, from grouped by key head to tiled over key heads."""
        return heads.view(Hk, Hv // Hk, size, *heads.shape[1:]).transpose(0, 1).reshape(heads.shape)

    part = name.removeprefix("linear_attn.")
    if name.endswith("norm.weight") and part == name:
        return values + 1
    if part == "conv1d.weight":
        values = values.squeeze(1)
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        return torch.cat((values[:keys], tiled(values[keys:], Dv)))
    if part == "in_proj_z.weight":
        return tiled(values, Dv)
    if part in ("in_proj_a.weight", "in_proj_b.weight", "dt_bias"):
        return tiled(values, 1)
    if part == "A_log":
        return -tiled(values, 1).exp()
    if part == "out_proj.weight":
        return tiled(values.T, Dv).T
    if name == "mlp.shared_expert_gate.weight":
        return values[0]
    return values
