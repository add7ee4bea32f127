"""Random drafters that `tests/oracles/record_dflash.py` recorded: numpy alone makes their weights again."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A drafter's shape and what happens to it. Names of the fields as in `DraftConfig`."""

    name: str
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    block_size: int = 8
    hidden: int = 48
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 80
    taps: int = 3
    vocab: int = 120
    theta: float = 10000.0
    eps: float = 1e-6
    rounds: tuple[int, ...] = (37, 3, 1, 5)  # features that arrive before each draft
    conv: bool = False
    rank: int = 0  # of the selector or of the Markov tables
    markov: bool = False
    top_k: int = 8
    group: int = 16


CASES = {
    case.name: case
    for case in (
        Case("full", (None, None), (False, False)),
        Case("mixed", (10, None), (True, False)),
        Case("sliding", (12, 12), (False, False)),
        Case("narrow", (5, 5), (False, False)),
        Case("causal", (None, 9), (True, True), block_size=5),
        Case("dflash2", (20, 20), (False, False), block_size=6, conv=True, rank=12),
        Case("dspark", (None, None), (False, False), block_size=6, rank=10, markov=True),
    )
}

ANCHORS = (17, 91, 4, 63)
MASK = 119


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Canonical names (`pydflash.draft.config`), and the target's two matrices."""
    e, q, kv = case.hidden, case.heads * case.head_dim, case.kv_heads * case.head_dim
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (case.vocab, e),
        "target.output.weight": (case.vocab, e),
        "dflash.fc.weight": (e, case.taps * e),
        "dflash.hidden_norm.weight": (e,),
        "output_norm.weight": (e,),
    }
    for i in range(len(case.windows)):
        at = f"blk.{i}."
        out |= {
            at + "attn_norm.weight": (e,),
            at + "attn_q.weight": (q, e),
            at + "attn_k.weight": (kv, e),
            at + "attn_v.weight": (kv, e),
            at + "attn_output.weight": (e, q),
            at + "attn_q_norm.weight": (case.head_dim,),
            at + "attn_k_norm.weight": (case.head_dim,),
            at + "ffn_norm.weight": (e,),
            at + "ffn_gate.weight": (case.ffn, e),
            at + "ffn_up.weight": (case.ffn, e),
            at + "ffn_down.weight": (e, case.ffn),
        }
        for side in ("attn_conv", "ffn_conv") if case.conv else ():
            out[f"{at}{side}.base"] = (2, 2, e)
            out[f"{at}{side}.proj.weight"] = (2 * 2 * e // case.group, e)
    if case.markov:
        out |= {
            "dflash.dspark.markov.w1": (case.vocab, case.rank),
            "dflash.dspark.markov.w2": (case.vocab, case.rank),
            "dflash.dspark.confidence.weight": (1, e + case.rank),
            "dflash.dspark.confidence.bias": (1,),
        }
    elif case.rank:
        out |= {
            "dflash.selector.hproj.weight": (case.rank, e),
            "dflash.selector.pred_cb": (case.vocab, case.rank),
            "dflash.selector.succ_cb": (case.vocab, case.rank),
        }
    return out


def weights(case: Case) -> dict[str, F32]:
    """Norms around 1, matrices that keep a vector's size, heads loud enough to matter."""
    rng = np.random.default_rng(sum(map(ord, case.name)))
    out = {}
    for name, shape in shapes(case).items():
        x = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            x = 1 + 0.2 * x
        elif name.endswith("conv.base"):
            x = 0.3 * x
            x[:, 0] += 1
        elif len(shape) > 1:
            x *= (1.0 if "embd" in name else 1.5) / np.sqrt(shape[-1])
        out[name] = x.astype(np.float32)
    return out


def features(case: Case) -> F32:
    """What the target would have shown: f32 [sum(rounds), taps * E]."""
    rng = np.random.default_rng(1 + sum(map(ord, case.name)))
    return rng.standard_normal((sum(case.rounds), case.taps * case.hidden)).astype(np.float32)
