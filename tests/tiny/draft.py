"""tiny_draft: a complete small DFlash drafter with random weights, of every kind there is."""

from dataclasses import dataclass
from typing import Any

import torch

from pydflash.draft.config import (
    ConvConfig,
    DominoConfig,
    DraftConfig,
    MarkovConfig,
    SelectorConfig,
)
from pydflash.draft.layout import expected_shapes
from pydflash.layers.rope import RopeSpec

Tensor = torch.Tensor


def tiny_config(**changes: Any) -> DraftConfig:
    """A configuration that fits the target `tiny_gguf` makes by default, with `changes`."""
    layers = changes.get("layers", 2)
    windows = changes.get("windows", (None,) * layers)
    values: dict[str, Any] = {
        "hidden": 64,
        "ffn": 96,
        "layers": layers,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "eps": 1e-6,
        "rope": RopeSpec(dims=16, base=10000.0, interleaved=False),
        "block_size": 4,
        "mask_token": 317,
        "target_layers": (0, 1),
        "target_hidden": 64,
        "vocab": 320,
        "windows": windows,
        "causal": tuple(window is not None for window in windows),
        "max_positions": 512,
        "card": {"target": "Tiny llama", "target_layers": "2"},
    }
    return DraftConfig(**values | changes)


def tiny_draft(
    config: DraftConfig,
    seed: int = 0,
    *,
    gates: str | None = None,
    aux: bool = False,
    bias: bool = False,
    mask: bool = False,
    full_domino: bool = False,
    head: bool = True,
) -> dict[str, Tensor]:
    """Random tensors by canonical name, f32 (d2t int64), scaled so that activations stay near 1.

    `gates` "head" or "channel"; `aux` norms of the taps; `bias` of the projections; `mask` its own
    embedding; `full_domino` the biases and start state that Domino's head may have; `head` the output
    rows of a reduced vocabulary.
    """
    c, wanted = config, {}
    if gates is not None:
        rows = c.heads * c.head_dim if gates == "channel" else c.heads
        wanted["blk.0.attn_gate.weight"] = (rows, c.hidden)
    if aux:
        wanted["dflash.aux_hidden_norm.0.weight"] = (c.target_hidden,)
    if bias:
        wanted |= {"blk.0.attn_q.bias": (0,), "blk.0.attn_output.bias": (0,)}
    if mask:
        wanted["dflash.mask_embedding"] = (c.hidden,)
    if head and config.draft_vocab is not None:
        wanted["output.weight"] = (config.draft_vocab, c.hidden)
    if full_domino:
        at = "dflash.domino."
        wanted |= {at + n: (0,) for n in ("start", "gru.bias_ih", "head.b1", "head.b2")}
    rng = torch.Generator().manual_seed(seed)
    return {n: _random(n, s, config, rng) for n, s in expected_shapes(config, wanted).items()}


def _random(name: str, shape: tuple[int, ...], config: DraftConfig, rng: torch.Generator) -> Tensor:
    if name == "d2t":
        ids = torch.randperm(config.vocab, generator=rng)[: shape[0]].sort().values
        return ids - torch.arange(shape[0])
    values = torch.randn(shape, generator=rng)
    if "norm" in name:
        return 1 + 0.1 * values
    if name.endswith(".base"):
        values *= 0.1
        values[:, 0] += 1  # the identity, nearly
        return values
    if len(shape) == 1:
        return 0.1 * values if "mask" not in name else values
    return values / shape[-1] ** 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCase:
    """A drafter to test with: its configuration and which optional tensors it has."""

    config: DraftConfig
    options: dict[str, Any]

    def tensors(self, seed: int = 0) -> dict[str, Tensor]:
        return tiny_draft(self.config, seed, **self.options)


def _case(options: dict[str, Any] | None = None, **changes: Any) -> DraftCase:
    return DraftCase(config=tiny_config(**changes), options=options or {})


_YARN = RopeSpec(dims=16, base=1e6, interleaved=False, scaling="yarn", factor=4.0, original_ctx=128)
_LINEAR = RopeSpec(dims=8, base=1e7, interleaved=False, scaling="linear", factor=2.0)

CASES: dict[str, DraftCase] = {
    "v1": _case(),
    "swa": _case(layers=3, windows=(16, 16, None)),
    "swa-free": _case(windows=(16, 16), causal=(False, False)),
    "all-causal": _case(causal=(True, True)),
    "dflash2": _case(
        windows=(32, 32),
        causal=(False, False),
        conv=ConvConfig(width=2, group=16),
        selector=SelectorConfig(rank=8, top_k=4),
        logit_softcap=30.0,
        logit_scale=0.5,
    ),
    "markov": _case(from_anchor=True, markov=MarkovConfig(rank=8)),
    "dspark": _case(
        from_anchor=True,
        markov=MarkovConfig(rank=8, confidence=True, confidence_with_markov=True),
    ),
    "confidence": _case(markov=MarkovConfig(rank=8, confidence=True)),
    "reduced": _case(draft_vocab=96),
    "reduced-shared": _case({"head": False}, draft_vocab=96),
    "reduced-markov": _case(draft_vocab=96, markov=MarkovConfig(rank=8), from_anchor=True),
    "reduced-dflash2": _case(
        draft_vocab=96, conv=ConvConfig(), selector=SelectorConfig(rank=8, top_k=4)
    ),
    "reduced-selector": _case(
        causal=(True, True), draft_vocab=96, selector=SelectorConfig(rank=8, top_k=4)
    ),
    "reduced-selector-shared": _case(
        {"head": False}, draft_vocab=96, selector=SelectorConfig(rank=8, top_k=4)
    ),
    "domino": _case(from_anchor=True, domino=DominoConfig(hidden=24, embedding=16, prefix=1)),
    "domino-full": _case(
        {"full_domino": True}, domino=DominoConfig(hidden=24, embedding=16, prefix=0)
    ),
    "gates": _case({"gates": "head"}, context_norm=True),
    "channel-gates": _case({"gates": "channel", "aux": True}, context_norm=True),
    "mask": _case({"mask": True}),
    "bias": _case({"bias": True}),
    "wide-target": _case(target_hidden=128, target_layers=(0, 2, 5)),
    "yarn": _case(rope=_YARN),
    "linear": _case(rope=_LINEAR),
}
