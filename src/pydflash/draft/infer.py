"""What a drafter's tensors say of it by their shapes alone. All shapes by canonical name, in torch order.

A head is there as soon as one of its tensors is, so that the others are missed by name.
"""

from pydflash.draft.config import DominoConfig, MarkovConfig
from pydflash.draft.layout import Shapes
from pydflash.errors import CheckpointError

_MARKOV = ("dflash.dspark.markov.w1", "dflash.dspark.markov.w2")
_CONFIDENCE = ("dflash.dspark.confidence.weight", "dflash.dspark.confidence.bias")


def markov_of(shapes: Shapes) -> MarkovConfig | None:
    """The Markov and confidence heads."""
    if not any(name.startswith("dflash.dspark.") for name in shapes):
        return None
    rank = next((shapes[name][-1] for name in _MARKOV if name in shapes), 0)
    width = shapes.get(_CONFIDENCE[0], (0,))[-1]
    hidden = shapes.get("dflash.hidden_norm.weight", (0,))[-1]
    return MarkovConfig(
        rank=rank,
        confidence=any(name in shapes for name in _CONFIDENCE),
        confidence_with_markov=width == hidden + rank,
    )


def domino_of(shapes: Shapes, *, prefix: int) -> DominoConfig | None:
    """Domino's head, its first `prefix` slots keeping their base logits (no tensor tells)."""
    at = "dflash.domino."
    if not any(name.startswith(at) for name in shapes):
        return None
    hidden = max(shapes.get(at + f"gru.weight_{side}", (0,))[0] // 3 for side in ("hh", "ih"))
    embedding = max(shapes.get(at + "head.w1", (0,))[0], shapes.get(at + "head.w2", (0,))[-1])
    return DominoConfig(hidden=hidden, embedding=embedding, prefix=prefix)


def selector_rank(shapes: Shapes) -> int:
    """Columns of a codebook; 0 when neither is there."""
    names = ("dflash.selector.pred_cb", "dflash.selector.succ_cb")
    return next((shapes[name][-1] for name in names if name in shapes), 0)


def draft_vocab_of(shapes: Shapes) -> int | None:
    """Rows of a reduced vocabulary."""
    names = ("d2t", "output.weight")
    return next((shapes[name][0] for name in names if name in shapes), None)


def check_taps(name: str, shapes: Shapes, target_hidden: int, ids: int) -> int:
    """How many layers `fc` of the file `name` takes: the weights are the truth, the ids must be as many."""
    if "dflash.fc.weight" not in shapes:
        raise CheckpointError(
            f"{name} lacks the tensor dflash.fc.weight; download or convert the drafter again"
        )
    cols = shapes["dflash.fc.weight"][-1]
    if target_hidden <= 0 or cols % target_hidden:
        raise CheckpointError(
            f"{name}: dflash.fc.weight takes {cols} features, which is no multiple of the target's "
            f"hidden size {target_hidden}; download or convert the drafter again"
        )
    if cols // target_hidden != ids:
        raise CheckpointError(
            f"{name} names {ids} target layers, but dflash.fc.weight takes {cols // target_hidden}; "
            "download or convert the drafter again"
        )
    return ids
