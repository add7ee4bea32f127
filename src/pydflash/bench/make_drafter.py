"""make_drafter: a DFlash drafter of the published shape with random weights, for a target of any size.

It measures what drafting costs: what it drafts is accepted by chance alone.
"""

from pathlib import Path

from pydflash.bench.chance import Chance
from pydflash.bench.make_model import BUILT_IN, Dimensions
from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.writer import write_gguf
from pydflash.draft.bounds import check_config
from pydflash.draft.config import DraftConfig
from pydflash.draft.layout import expected_shapes
from pydflash.draft.write_gguf_keys import seeds_keys
from pydflash.errors import ConfigError
from pydflash.layers.rope import RopeSpec
from pydflash.quant.formats import FORMATS
from pydflash.quant.mix import Mix, mix_type

_ARCH = "dflash-draft"
_HEAD_DIM, _QUERY_HEADS, _WINDOW, _CONTEXT = 128, 4, 2048, 32768


def make_drafter(config: DraftConfig, dest: Path, *, type: str, seed: int = 0) -> Path:
    """Write `dest` with formats as `type` (a name in `quant.mix.MIXES`) mixes them; return it."""
    check_config(config)
    shapes = expected_shapes(config, {})
    kind = mix_type(type)
    mix = Mix(kind, shapes)
    chance = Chance(seed)
    sources = [
        chance.source(name, shape, mix.format_of(name, shape, FORMATS["F32"]))
        for name, shape in shapes.items()
    ]
    keys: dict[str, object] = {
        "general.architecture": _ARCH,
        "general.type": "model",
        "general.name": f"random drafter of {config.layers} layers",
        "general.file_type": kind.file_type,
    }
    return write_gguf(dest, meta=keys | seeds_keys(config, _ARCH), tensors=sources)


def published(target: str, layers: int = 5, block_size: int = 16) -> DraftConfig:
    """The published form for a target: a dimensions file, a built-in name or a GGUF file.

    As z-lab's for Qwen3.5-27B and 3.6-27B: heads of 128 (32 of queries, 8 of keys at 5120 features), the
    target's feed-forward width, a block of 16, as many taps as layers, spread evenly from layer 1, all
    layers but the last sliding over 2,048 positions.
    """
    known = _target(target)
    hidden, deep = known["embedding_length"], known["block_count"]
    kv_heads = max(hidden // 640, 1)
    taps = min(layers, deep)
    stride = max((deep - 2) // max(taps - 1, 1), 1)
    windows = (*((_WINDOW,) * (layers - 1)), None)
    return DraftConfig(
        hidden=hidden,
        ffn=known["feed_forward_length"],
        layers=layers,
        heads=_QUERY_HEADS * kv_heads,
        kv_heads=kv_heads,
        head_dim=_HEAD_DIM,
        eps=1e-6,
        rope=RopeSpec(dims=_HEAD_DIM, base=1e7, interleaved=False),
        block_size=block_size,
        mask_token=max(known["vocabulary"] - 250, 0),  # reserved, as theirs: 248070
        target_layers=tuple(sorted({min(1 + i * stride, deep - 1) for i in range(taps)})),
        target_hidden=hidden,
        vocab=known["vocabulary"],
        windows=windows,
        causal=tuple(window is not None for window in windows),
        max_positions=_CONTEXT,
    )


def _target(target: str) -> dict[str, int]:
    """The target's dimensions: the keys of its file, and `vocabulary`."""
    names = ("embedding_length", "block_count", "feed_forward_length")
    if target.endswith(".gguf"):
        with open_checkpoint(target) as checkpoint:
            meta = checkpoint.meta
            rows = checkpoint.tensors["token_embd.weight"].shape[0]
            expert = meta.int("{arch}.expert_feed_forward_length", default=0)
            found = {n: meta.int(f"{{arch}}.{n}", default=8 * expert) for n in names}
            return found | {"vocabulary": rows}
    dimensions = Dimensions.read(target)
    values = dimensions.metadata
    wide = 8 * values.get("expert_feed_forward_length", 0)
    found = {n: values.get(n, wide) for n in names}
    if not all(found.values()):
        raise ConfigError(f"{target} does not state {', '.join(names)}; see {BUILT_IN.name}/")
    return found | {"vocabulary": dimensions.vocabulary}
