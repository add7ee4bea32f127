"""make_model: a model file of given dimensions with random weights, to measure sizes nobody has at hand.

Every matrix is put together from stretches of a bank of properly packed random blocks, so that a file of
any size is made at the speed of the disk. One tensor is in memory at a time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydflash.bench.chance import Chance, Shape
from pydflash.checkpoint.writer import Int32s, write_gguf
from pydflash.errors import ConfigError
from pydflash.quant.formats import FORMATS
from pydflash.quant.mix import Mix, MixType, mix_type

BUILT_IN = Path(__file__).with_name("dimensions")
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """What a dimensions file says. `metadata` keys are those below `{architecture}.`."""

    architecture: str
    name: str
    vocabulary: int
    tied: bool
    metadata: Mapping[str, Any]

    @classmethod
    def read(cls, source: str) -> "Dimensions":
        """A JSON file, or the name of one that comes with the package."""
        path = Path(source).expanduser()
        if not path.is_file():
            path = BUILT_IN / f"{source}.json"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in BUILT_IN.glob("*.json")))
            raise ConfigError(f"{source} is no file of dimensions; built in are {known}")
        try:
            values = json.loads(path.read_text())
            return cls(**values)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} does not describe dimensions: {error}") from None


def make_model(dimensions: Dimensions, dest: Path, *, type: str, seed: int = 0) -> Path:
    """Write `dest` with formats as `type` (a name in `quant.mix.MIXES`) mixes them; return it."""
    shapes = tensor_shapes(dimensions)
    kind = mix_type(type)
    mix = Mix(kind, shapes)
    chance = Chance(seed)
    sources = [
        chance.source(name, shape, mix.format_of(name, shape, FORMATS["F32"]))
        for name, shape in shapes.items()
    ]
    return write_gguf(dest, meta=_metadata(dimensions, kind), tensors=sources)


def tensor_shapes(d: Dimensions) -> dict[str, Shape]:
    """Name and shape of every tensor; ConfigError for an architecture or a key that is not known here."""
    try:
        return _tensor_shapes(d)
    except KeyError as error:
        raise ConfigError(f"the dimensions of {d.name} lack {error.args[0]!r}") from None


def _tensor_shapes(d: Dimensions) -> dict[str, Shape]:
    m = d.metadata
    hidden = m["embedding_length"]
    shapes: dict[str, Shape] = {"token_embd.weight": (d.vocabulary, hidden)}
    for layer in range(m["block_count"]):
        parts: dict[str, Shape] = {"attn_norm.weight": (hidden,)}
        if d.architecture in ("qwen35", "qwen35moe"):
            attends = (layer + 1) % m["full_attention_interval"] == 0
            parts |= _attention(m, 2) if attends else _delta(m)
            parts["post_attention_norm.weight"] = (hidden,)
        elif d.architecture in ("llama", "qwen3", "qwen3moe"):
            parts |= _attention(m, 1, norms=d.architecture != "llama")
            parts["ffn_norm.weight"] = (hidden,)
        else:
            raise ConfigError(f"no tensors are known for architecture {d.architecture!r}")
        parts |= _experts(m) if d.architecture.endswith("moe") else _dense(m)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["output_norm.weight"] = (hidden,)
    if not d.tied:
        shapes["output.weight"] = (d.vocabulary, hidden)
    return shapes


def _attention(m: Mapping[str, Any], query: int, *, norms: bool = True) -> dict[str, Shape]:
    hidden, dim = m["embedding_length"], m["attention.key_length"]
    q, kv = m["attention.head_count"] * dim, m["attention.head_count_kv"] * dim
    shapes: dict[str, Shape] = {
        "attn_q.weight": (query * q, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_output.weight": (hidden, q),
    }
    return shapes | ({"attn_q_norm.weight": (dim,), "attn_k_norm.weight": (dim,)} if norms else {})


def _delta(m: Mapping[str, Any]) -> dict[str, Shape]:
    hidden, inner, heads = m["embedding_length"], m["ssm.inner_size"], m["ssm.time_step_rank"]
    channels = inner + 2 * m["ssm.group_count"] * m["ssm.state_size"]
    return {
        "attn_qkv.weight": (channels, hidden),
        "attn_gate.weight": (inner, hidden),
        "ssm_alpha.weight": (heads, hidden),
        "ssm_beta.weight": (heads, hidden),
        "ssm_conv1d.weight": (channels, m["ssm.conv_kernel"]),
        "ssm_a": (heads,),
        "ssm_dt.bias": (heads,),
        "ssm_norm.weight": (inner // heads,),
        "ssm_out.weight": (hidden, inner),
    }


def _dense(m: Mapping[str, Any]) -> dict[str, Shape]:
    hidden, ffn = m["embedding_length"], m["feed_forward_length"]
    return {
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }


def _experts(m: Mapping[str, Any]) -> dict[str, Shape]:
    hidden, count, ffn = (
        m["embedding_length"],
        m["expert_count"],
        m["expert_feed_forward_length"],
    )
    shapes: dict[str, Shape] = {
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_gate_exps.weight": (count, ffn, hidden),
        "ffn_up_exps.weight": (count, ffn, hidden),
        "ffn_down_exps.weight": (count, hidden, ffn),
    }
    shared = m.get("expert_shared_feed_forward_length", 0)
    if shared:
        shapes |= {
            "ffn_gate_inp_shexp.weight": (hidden,),
            "ffn_gate_shexp.weight": (shared, hidden),
            "ffn_up_shexp.weight": (shared, hidden),
            "ffn_down_shexp.weight": (hidden, shared),
        }
    return shapes


def _metadata(d: Dimensions, kind: MixType) -> dict[str, object]:
    tokens, types = _vocabulary(d.vocabulary)
    return {
        "general.architecture": d.architecture,
        "general.name": d.name,
        "general.type": "model",
        "general.file_type": kind.file_type,
        **{
            f"{d.architecture}.{key}": Int32s(value) if isinstance(value, list) else value
            for key, value in d.metadata.items()
        },
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35" if d.architecture.startswith("qwen35") else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Int32s(types),
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": _SPECIALS.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def _vocabulary(size: int) -> tuple[list[str], list[int]]:
    """Specials, the 256 byte characters of byte-level BPE, one merge, and names for the rest."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    tokens = [*_SPECIALS, *(chr(b) if b in kept else chr(next(spare)) for b in range(256)), "th"]
    if size < len(tokens):
        raise ConfigError(f"a vocabulary of {size} is too small; it needs {len(tokens)} or more")
    types = [3] * len(_SPECIALS) + [1] * (len(tokens) - len(_SPECIALS))
    unused = size - len(tokens)
    return [*tokens, *(f"[PAD{i}]" for i in range(unused))], types + [5] * unused
