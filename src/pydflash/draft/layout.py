"""The tensors a DraftConfig calls for: canonical names and shapes, and the check of a file against them.

Every tensor is known or refused by name; groups that may be absent (gates, norms of the taps, biases) are
there for all layers or for none.
"""

from collections.abc import Mapping

from pydflash.draft.config import DraftConfig
from pydflash.errors import CheckpointError

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]

GATE = "attn_gate.weight"
_AUX = "dflash.aux_hidden_norm."


def expected_shapes(config: DraftConfig, present: Shapes) -> dict[str, Shape]:
    """Every tensor `config` calls for, with those optional groups of which `present` has a member.

    Shapes in torch order. Sizes that no configuration states (gates per head or per channel) come from
    `present`.
    """
    c, e = config, config.hidden
    shapes: dict[str, Shape] = {
        "dflash.fc.weight": (e, len(c.target_layers) * c.target_hidden),
        "dflash.hidden_norm.weight": (e,),
        "output_norm.weight": (e,),
    }
    for layer in range(c.layers):
        for name, shape in _layer(c, present).items():
            shapes[f"blk.{layer}.{name}"] = shape
    if any(name.startswith(_AUX) for name in present):
        count = range(len(c.target_layers))
        shapes |= {f"{_AUX}{j}.weight": (c.target_hidden,) for j in count}
    if "dflash.mask_embedding" in present:
        shapes["dflash.mask_embedding"] = (e,)
    if c.draft_vocab is not None:
        shapes["d2t"] = (c.draft_vocab,)
        if "output.weight" in present:  # else its rows of the target's head serve
            shapes["output.weight"] = (c.draft_vocab, e)
    return shapes | _head(c, present)


def check_tensors(config: DraftConfig, present: Shapes, where: str) -> None:
    """Refuse, by name, a tensor that is missing, of another shape than `config` implies, or unknown."""
    expected = expected_shapes(config, present)
    missing = [name for name in expected if name not in present]
    unknown = sorted(name for name in present if not _known(name, expected))
    if missing:
        named = f" (it has {unknown[0]}, which nothing uses)" if unknown else ""
        raise CheckpointError(
            f"{where} lacks the tensor {missing[0]}{_more(missing)}{named}; "
            "download or convert the drafter again"
        )
    if unknown:
        raise CheckpointError(
            f"{where} has the tensor {unknown[0]}{_more(unknown)}, which a drafter of its configuration "
            "does not use; it may need a newer pydflash"
        )
    for name, shape in expected.items():
        if present[name] != shape:
            raise CheckpointError(
                f"{where}: {name} is {list(present[name])}, the configuration implies {list(shape)}; "
                "download or convert the drafter again"
            )


def _layer(c: DraftConfig, present: Shapes) -> dict[str, Shape]:
    e, q, kv = c.hidden, c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, Shape] = {
        "attn_norm.weight": (e,),
        "attn_q.weight": (q, e),
        "attn_k.weight": (kv, e),
        "attn_v.weight": (kv, e),
        "attn_output.weight": (e, q),
        "attn_q_norm.weight": (c.head_dim,),
        "attn_k_norm.weight": (c.head_dim,),
        "ffn_norm.weight": (e,),
        "ffn_gate.weight": (c.ffn, e),
        "ffn_up.weight": (c.ffn, e),
        "ffn_down.weight": (e, c.ffn),
    }
    parts = {name.split(".", 2)[-1] for name in present if name.startswith("blk.")}
    if parts & {"attn_q.bias", "attn_k.bias", "attn_v.bias"}:
        shapes |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if "attn_output.bias" in parts:
        shapes["attn_output.bias"] = (e,)
    if GATE in parts:
        first = next(shape for name, shape in present.items() if name.endswith(GATE))
        shapes[GATE] = (q if first == (q, e) else c.heads, e)
    if c.conv is not None:
        rows = 2 * c.conv.width * (e // c.conv.group)
        for side in ("attn_conv", "ffn_conv"):
            shapes[f"{side}.base"] = (2, c.conv.width, e)
            shapes[f"{side}.proj.weight"] = (rows, e)
    return shapes


def _head(c: DraftConfig, present: Shapes) -> dict[str, Shape]:
    """The conditional head's tensors. `rows` are draft ids, columns of tables are target ids."""
    rows = c.draft_vocab or c.vocab
    if c.selector is not None:
        rank, at = c.selector.rank, "dflash.selector."
        return {
            at + "hproj.weight": (rank, c.hidden),
            at + "pred_cb": (c.vocab, rank),
            at + "succ_cb": (rows, rank),
        }
    if c.markov is not None:
        at = "dflash.dspark."
        shapes: dict[str, Shape] = {
            at + "markov.w1": (c.vocab, c.markov.rank),
            at + "markov.w2": (rows, c.markov.rank),
        }
        if c.markov.confidence:
            width = c.hidden + (c.markov.rank if c.markov.confidence_with_markov else 0)
            shapes |= {at + "confidence.weight": (1, width), at + "confidence.bias": (1,)}
        return shapes
    return _domino(c, rows, present) if c.domino is not None else {}


def _domino(c: DraftConfig, rows: int, present: Shapes) -> dict[str, Shape]:
    assert c.domino is not None
    at, h, inner = "dflash.domino.", c.domino.hidden, c.domino.embedding
    shapes: dict[str, Shape] = {
        at + "gru.weight_ih": (3 * h, c.hidden),
        at + "gru.weight_hh": (3 * h, h),
        at + "head.w1": (inner, c.hidden + h),
        at + "head.w2": (rows, inner),
    }
    optional: tuple[dict[str, Shape], ...] = (
        {at + "start": (h,)},
        {at + "gru.bias_ih": (3 * h,), at + "gru.bias_hh": (3 * h,)},
        {at + "head.b1": (inner,)},
        {at + "head.b2": (rows,)},
    )
    for group in optional:
        if any(name in present for name in group):
            shapes |= group
    return shapes


def _known(name: str, expected: Mapping[str, Shape]) -> bool:
    # NVFP4 files keep one factor beside a matrix, as in `blk.0.attn_q.scale`.
    return name in expected or name.removesuffix(".scale") + ".weight" in expected


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
