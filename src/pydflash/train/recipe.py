"""Recipe: every number of a training run, once: default and help. Saved with checkpoints and in the card."""

from dataclasses import dataclass, field
from typing import Any

from pydflash.draft.config import DraftConfig, SelectorConfig
from pydflash.errors import ConfigError
from pydflash.layers.rope import RopeSpec
from pydflash.train.target import TargetShape


def option(default: Any, help: str) -> Any:
    """A field that knows its help text."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRecipe:
    """What the drafter looks like."""

    layers: int = option(2, "layers of the drafter")
    ffn: int = option(0, "width of its feed-forward; 0: the target's")
    taps: tuple[int, ...] = option((), "target layers it reads, 0-based; none: spread by depth")
    block_size: int = option(16, "the anchor and the masks behind it")
    causal: bool = option(True, "a slot sees earlier slots only, so blocks can be cut short")
    draft_vocab: int = option(12288, "tokens it can draft, the most frequent; 0: all of them")
    selector_rank: int = option(64, "rank of the pairwise selector; 0: none")
    selector_top_k: int = option(16, "candidates the selector chooses among")
    mask_token: int = option(-1, "token that stands for a slot; -1: an unused special")
    warm_start: bool = option(True, "begin with the weights of the target's last layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRecipe:
    """How it is trained."""

    steps: int = option(2000, "optimiser steps")
    tokens: int = option(8192, "document tokens in a step, padding included")
    blocks: int = option(1024, "anchors in a step, dealt out evenly to its documents")
    short_block: int = option(8, "slots of most steps' blocks; every fourth step trains whole ones")
    max_len: int = option(768, "documents are cut to this many tokens")
    lr: float = option(1e-3, "peak learning rate")
    warmup: int = option(100, "steps up to it")
    clip: float = option(1.0, "largest gradient norm")
    ema: float = option(0.999, "decay of the averaged weights, which are what is kept")
    loss: str = option("dpace", "weights of slots: dpace, or decay (exponential)")
    gamma: float = option(5.0, "slots over which `decay` falls to 1/e")
    unary: float = option(0.3, "weight of the loss without the selector, where there is one")
    held_out: int = option(24, "documents of each domain kept to measure acceptance")
    evaluate_every: int = option(500, "steps between measurements and checkpoints")
    seed: int = option(0, "of data order, anchors and weights")

    def __post_init__(self) -> None:
        if self.loss not in ("dpace", "decay"):
            raise ConfigError(f"loss {self.loss!r} is not known; choose dpace or decay")
        if min(self.steps, self.tokens, self.blocks, self.max_len, self.evaluate_every) < 1:
            raise ConfigError("steps, tokens, blocks, max_len and evaluate_every must be 1 or more")


def spread_taps(layers: int, count: int = 4) -> tuple[int, ...]:
    """`count` layers from an early one to the last but one; late ones say most about the next tokens."""
    if layers < count + 1:
        return tuple(range(layers))
    last = layers - 2
    first = max(1, layers // 6)
    return tuple(sorted({round(first + i * (last - first) / (count - 1)) for i in range(count)}))


def draft_config(
    shape: TargetShape, recipe: NetworkRecipe, mask_token: int, card: dict[str, str]
) -> DraftConfig:
    """A drafter of the target's own width. Raises ConfigError for impossible choices."""
    taps = recipe.taps or spread_taps(shape.layers)
    if any(not 0 <= tap < shape.layers for tap in taps) or list(taps) != sorted(set(taps)):
        raise ConfigError(f"taps {list(taps)} must be ascending layers of 0..{shape.layers - 1}")
    if recipe.layers < 1 or recipe.block_size < 2:
        raise ConfigError("a drafter needs 1 layer and a block of 2 or more")
    if not 0 <= recipe.draft_vocab <= shape.vocab:
        raise ConfigError(f"draft_vocab {recipe.draft_vocab} is not within 0..{shape.vocab}")
    return DraftConfig(
        hidden=shape.hidden,
        ffn=recipe.ffn or shape.ffn,
        layers=recipe.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        eps=shape.eps,
        rope=RopeSpec(dims=shape.head_dim, base=shape.rope_base, interleaved=False),
        block_size=recipe.block_size,
        mask_token=mask_token,
        target_layers=taps,
        target_hidden=shape.hidden,
        vocab=shape.vocab,
        windows=(None,) * recipe.layers,
        causal=(recipe.causal,) * recipe.layers,
        draft_vocab=recipe.draft_vocab or None,
        max_positions=shape.max_positions,
        selector=SelectorConfig(rank=recipe.selector_rank, top_k=recipe.selector_top_k)
        if recipe.selector_rank
        else None,
        card=card,
    )
