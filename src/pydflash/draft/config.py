"""DraftConfig: what a drafter's file says of itself, whichever container it came in.

Canonical tensor names are those of the seeds' GGUF dialect (docs/speculation.md):
`dflash.fc.weight` [E, n * Et], `dflash.hidden_norm.weight` [E], `output_norm.weight` [E], per layer
`blk.i.` attn_norm, attn_q, attn_k, attn_v, attn_output, attn_q_norm, attn_k_norm, ffn_norm, ffn_gate,
ffn_up, ffn_down (all `.weight`). Optional: `dflash.mask_embedding` [E], `dflash.aux_hidden_norm.j.weight`
[Et], `blk.i.attn_gate.weight` [H or H * D, E], `blk.i.attn_{q,k,v,output}.bias`, `output.weight` [Vd, E]
and `d2t` int [Vd] (reduced vocabulary: target id of draft id i is i + d2t[i], as in the speculators
format), `blk.i.{attn,ffn}_conv.base` [2, W, E] (side, tap, channel) and `.proj.weight`
[2 * W * groups, E], `dflash.selector.hproj.weight` [rank, E], `dflash.selector.{pred,succ}_cb` and
`dflash.dspark.markov.{w1,w2}` [V, rank] (the first of a pair by target id, the second by draft id:
[Vd, rank] with a reduced vocabulary), `dflash.dspark.confidence.{weight,bias}`, `dflash.domino.*`
(draft.layout). Without `output.weight` the target's rows serve a reduced vocabulary. Shapes in torch order.
"""

from dataclasses import dataclass, field

from pydflash.layers.rope import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvConfig:
    """DFlash2's in-block convolutions: `width` taps, corrections shared by `group` channels."""

    width: int = 2
    group: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorConfig:
    """DFlash2's pairwise selector: S(a, b) = U(b) + <A[a] * (W h), B[b]> among a slot's top_k."""

    rank: int
    top_k: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovConfig:
    """DSpark's heads: the bias W1[previous] W2, and an optional confidence head."""

    rank: int
    confidence: bool = False
    confidence_with_markov: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DominoConfig:
    """Domino's head: a GRU over the block's tokens, its correction added to the base logits."""

    hidden: int
    embedding: int
    prefix: int = 1  # slots that keep their base logits


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Dimensions and rules of a DFlash drafter. E its hidden size, Et the target's."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rope: RopeSpec
    block_size: int  # the anchor and the masks behind it
    mask_token: int
    target_layers: tuple[int, ...]  # 0-based; a feature is the OUTPUT of that layer
    target_hidden: int
    vocab: int  # the target's
    windows: tuple[int | None, ...]  # of each layer, in positions; None sees everything
    causal: tuple[bool, ...]  # of each layer, inside the block
    draft_vocab: int | None = None  # rows of a reduced vocabulary
    from_anchor: bool = False  # slot j predicts the token after it: a block of B gives B drafts
    context_norm: bool = False  # the seeds' dflash.context_kv_layer_norm
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    max_positions: int = 0  # 0: not stated
    conv: ConvConfig | None = None
    selector: SelectorConfig | None = None
    markov: MarkovConfig | None = None
    domino: DominoConfig | None = None
    card: dict[str, str] = field(
        default_factory=dict
    )  # what its maker recorded: target, template...

    @property
    def slots(self) -> int:
        """Positions a block drafts."""
        return self.block_size if self.from_anchor else self.block_size - 1
