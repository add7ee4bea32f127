"""The oracle for forward math: a GGUF file's own weights, dequantised, in the `transformers` model.

F32, eager attention. Llama files store q and k rows permuted for interleaved rotation; here they are put
back. Run as a script to compare a file: python -m tests.oracles.logits_transformers FILE.gguf
"""

import sys
from pathlib import Path
from typing import Any

import torch

from pydflash.checkpoint.files import Checkpoint, open_checkpoint
from pydflash.kernels.ref.quant import dequantize

Tensor = torch.Tensor


def transformers_model(path: Path) -> Any:
    """The file as LlamaForCausalLM or Qwen3ForCausalLM, ready to run."""
    import transformers

    with open_checkpoint(path) as checkpoint:
        arch = checkpoint.meta.arch
        names = {"llama": "Llama", "qwen3": "Qwen3"}
        config = getattr(transformers, names[arch] + "Config")(**_config(checkpoint))
        config._attn_implementation = "eager"
        model = getattr(transformers, names[arch] + "ForCausalLM")(config).eval()
        weights = _weights(checkpoint)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        zeros = {
            n for n in missing if n.endswith(".bias")
        }  # a file may give biases to q, k, v alone
        for name in zeros:
            model.get_parameter(name).data.zero_()
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        assert not unexpected, unexpected
        assert set(missing) - zeros <= tied, missing
        if "rope_freqs.weight" in checkpoint.tensors:
            rotary = model.model.rotary_emb
            rotary.inv_freq = rotary.inv_freq / dequantize(checkpoint.tensor("rope_freqs.weight"))
    return model


@torch.inference_mode()
def oracle_logits(model: Any, tokens: list[int]) -> Tensor:
    """f32 [len(tokens), V]."""
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    meta = checkpoint.meta
    heads = meta.int("{arch}.attention.head_count")
    hidden = meta.int("{arch}.embedding_length")
    head_dim = meta.int("{arch}.attention.key_length", default=hidden // heads)
    base = meta.float("{arch}.rope.freq_base", default=10000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    kind = meta.str("{arch}.rope.scaling.type", default="none")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": meta.float("{arch}.rope.scaling.factor")}
    if kind == "yarn":
        original = meta.int("{arch}.rope.scaling.original_context_length")
        rope |= {"original_max_position_embeddings": original}
    return {
        "vocab_size": checkpoint.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.int("{arch}.feed_forward_length"),
        "num_hidden_layers": meta.int("{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.int("{arch}.attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.int("{arch}.context_length"),
        "rms_norm_eps": meta.float("{arch}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "attention_bias": "blk.0.attn_q.bias" in checkpoint.tensors,
        "tie_word_embeddings": "output.weight" not in checkpoint.tensors,
    }


_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    meta = checkpoint.meta
    heads = {"attn_q": meta.int("{arch}.attention.head_count")}
    heads["attn_k"] = meta.int("{arch}.attention.head_count_kv", default=heads["attn_q"])
    out = {}
    for name in checkpoint.tensors:
        if name == "rope_freqs.weight":
            continue
        values = dequantize(checkpoint.tensor(name)).clone()
        if name in _TOP:
            out[_TOP[name]] = values
            continue
        _, layer, part, kind = name.split(".")
        if meta.arch == "llama" and part in heads:
            values = _halves(values, heads[part])
        out[f"model.layers.{layer}.{_LAYER[part]}.{kind}"] = values
    return out


def _halves(values: Tensor, heads: int) -> Tensor:
    """Rows of each head from interleaved pairs (0, 1), (2, 3) to halves (0, D/2), (1, D/2 + 1)."""
    rest = values.shape[1:]
    return values.view(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest)


def main(path: Path) -> None:
    from pydflash.bench.harness import Rig
    from pydflash.config import EngineConfig, RuntimeConfig, StateConfig

    config = EngineConfig(
        runtime=RuntimeConfig(ops="ref", threads=1),
        state=StateConfig(cache_type_k="f32", cache_type_v="f32", max_ctx=256),
    )
    rig = Rig(path, config)
    tokens = [(7919 * i + 13) % rig.vocab_size for i in range(200)]
    want = oracle_logits(transformers_model(path), tokens)
    print(f"max |difference| {(rig.read_prompt(tokens, every=True) - want).abs().max():.2e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
