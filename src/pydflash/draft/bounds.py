"""check_config: what a DraftConfig must satisfy, whichever file it came from or goes to.

Forged numbers are refused here, before anything is allocated. The bounds are the seeds'.
"""

from itertools import pairwise

from pydflash.draft.config import DraftConfig
from pydflash.errors import CheckpointError

_MOST = {
    "layers": 1024,
    "hidden": 131_072,
    "target_hidden": 131_072,
    "ffn": 524_288,
    "heads": 1024,
    "kv_heads": 1024,
    "head_dim": 1024,
    "block_size": 4096,
    "vocab": 1 << 24,
}


def check_config(config: DraftConfig) -> DraftConfig:
    """Return `config`, or raise a CheckpointError that names the first number that cannot be."""
    c = config
    for name, most in _MOST.items():
        value = getattr(c, name)
        if not 0 < value <= most:
            raise _bad(f"{name} is {value}, it must lie between 1 and {most}")
    if c.heads % c.kv_heads:
        raise _bad(f"{c.heads} heads do not divide over {c.kv_heads} kv heads")
    if not 0 < c.eps < 1:
        raise _bad(f"the norm's epsilon is {c.eps}")
    if c.rope.dims > c.head_dim:
        raise _bad(f"rope turns {c.rope.dims} of a head's {c.head_dim} dimensions")
    if c.rope.scaling == "yarn" and c.rope.original_ctx <= 0:
        raise _bad(f"yarn stretches a context of {c.rope.original_ctx} positions")
    if c.slots < 1:
        raise _bad(f"a block of {c.block_size} drafts nothing; it must hold the anchor and a mask")
    if not 0 <= c.mask_token < c.vocab:
        raise _bad(f"the mask token {c.mask_token} is not in the vocabulary of {c.vocab}")
    if c.logit_scale <= 0 or (c.logit_softcap is not None and c.logit_softcap <= 0):
        raise _bad(f"logits are scaled by {c.logit_scale} and capped at {c.logit_softcap}")
    if c.draft_vocab is not None and not 0 < c.draft_vocab <= c.vocab:
        raise _bad(f"the draft vocabulary of {c.draft_vocab} does not fit into that of {c.vocab}")
    _check_taps(c)
    _check_layers(c)
    _check_heads(c)
    return config


def _check_taps(c: DraftConfig) -> None:
    ids = c.target_layers
    if not ids or ids[0] < 0 or any(b <= a for a, b in pairwise(ids)):
        raise _bad(f"the target's layers {list(ids)} must be distinct, ascending and not negative")


def _check_layers(c: DraftConfig) -> None:
    if len(c.windows) != c.layers or len(c.causal) != c.layers:
        raise _bad(
            f"{len(c.windows)} windows and {len(c.causal)} causal flags for {c.layers} layers"
        )
    narrow = [w for w in c.windows if w is not None and w < c.block_size]
    if narrow:
        raise _bad(f"a window of {narrow[0]} positions is narrower than a block of {c.block_size}")


def _check_heads(c: DraftConfig) -> None:
    heads = [name for name in ("selector", "markov", "domino") if getattr(c, name) is not None]
    if len(heads) > 1:
        raise _bad(f"it has {' and '.join(heads)} heads, one of them is possible")
    if c.conv is not None and (c.conv.width < 1 or c.conv.group < 1 or c.hidden % c.conv.group):
        raise _bad(f"convolutions of width {c.conv.width}, groups of {c.conv.group} channels")
    if c.selector is not None and not (c.selector.rank > 0 and 0 < c.selector.top_k <= c.vocab):
        raise _bad(f"the selector has rank {c.selector.rank} and top-k {c.selector.top_k}")
    if c.markov is not None and c.markov.rank < 1:
        raise _bad(f"the Markov head has rank {c.markov.rank}")
    if c.markov is not None and c.markov.confidence_with_markov and not c.markov.confidence:
        raise _bad("the confidence head that is to read the Markov embedding does not exist")
    d = c.domino
    if d is not None and (min(d.hidden, d.embedding) < 1 or not 0 <= d.prefix <= c.block_size):
        raise _bad(f"the Domino head has sizes {d.hidden}, {d.embedding} and prefix {d.prefix}")


def _bad(what: str) -> CheckpointError:
    return CheckpointError(f"this drafter cannot be: {what}; download or convert it again")
