"""Acceptance length by replay: the rounds that drafting would take over text the target has already written.

Greedy text does not depend on the drafts, so replaying it counts exactly what the engine would accept (up to
the rounding of its kernels): an anchor, its slots' candidates, the drafted tokens that the text confirms, and
the next anchor behind them.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from pydflash.train.batches import collate
from pydflash.train.documents import Document
from pydflash.train.network import DraftNet
from pydflash.train.target import Target

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
_ANCHORS = 128  # blocks in one pass


@dataclass(slots=True)
class Acceptance:
    """tokens and rounds by way of drafting: "chain", or "tree N" for a tree of N nodes behind the anchor."""

    tokens: dict[str, int] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)

    def add(self, way: str, tokens: int, rounds: int) -> None:
        self.tokens[way] = self.tokens.get(way, 0) + tokens
        self.rounds[way] = self.rounds.get(way, 0) + rounds

    def lengths(self) -> dict[str, float]:
        """Tokens a round, the one the target adds itself included."""
        return {way: self.tokens[way] / max(self.rounds[way], 1) for way in self.tokens}


@dataclass(frozen=True, slots=True)
class Drafts:
    """tokens int32 [A, S, K] best first; pair f32 [A, S, K, K] as in `draft.base.DraftScores`."""

    tokens: I32
    pair: F32


@torch.inference_mode()
def measure(
    net: DraftNet,
    target: Target,
    documents: Sequence[Document],
    *,
    max_len: int,
    slots: int,
    trees: Sequence[int] = (16,),
) -> dict[str, dict[str, float]]:
    """{domain: {way: tokens a round}} with "all" over everything. Blocks of `slots` drafted positions."""
    totals: dict[str, Acceptance] = {"all": Acceptance()}
    for document in documents:
        if min(len(document.tokens), max_len) - document.start < 3:
            continue
        drafts = draft_all(net, target, document, max_len, slots)
        truth = document.tokens[document.start : max_len]
        for way, budget in (("chain", 0), *((f"tree {n}", n) for n in trees)):
            rounds = replay(drafts, truth, budget)
            # The first answered token comes from the prompt, before any round.
            for name in ("all", document.domain):
                totals.setdefault(name, Acceptance()).add(way, len(truth) - 1, rounds)
    return {name: totals[name].lengths() for name in sorted(totals)}


def draft_all(
    net: DraftNet, target: Target, document: Document, max_len: int, slots: int
) -> Drafts:
    """Every answered position as an anchor."""
    batch = collate([document], max_len).to(target.device)
    features = target.features(batch.tokens, net.config.target_layers)
    anchors = torch.arange(document.start, int(batch.lengths[0]) - 1, device=target.device)
    tokens, pairs = [], []
    for start in range(0, len(anchors), _ANCHORS):
        part = anchors[None, start : start + _ANCHORS]
        hidden = net(features, batch.tokens, part, slots + 1)[0]
        t, p = candidates(net, hidden, batch.tokens[0, part[0]])
        tokens.append(t.int().cpu().numpy())
        pairs.append(p.float().cpu().numpy())
    return Drafts(np.concatenate(tokens), np.concatenate(pairs))


def candidates(
    net: DraftNet, hidden: torch.Tensor, anchor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """hidden [A, S, E], anchor token [A] -> target ids [A, S, K] and log-probabilities [A, S, K, K]."""
    logits = net.unary(hidden)
    top_k = net.config.selector.top_k if net.config.selector else 16
    best, place = logits.topk(min(top_k, logits.shape[-1]), -1)  # [A, S, K]
    ids = net.ids[place]
    before = torch.cat([anchor[:, None, None].expand(-1, 1, ids.shape[-1]), ids[:, :-1]], 1)
    pair = (best - logits.logsumexp(-1, keepdim=True))[..., None, :].expand(
        *ids.shape, ids.shape[-1]
    )
    if net.config.selector is not None:
        gate = net.gate(hidden[..., None, :], before)  # [A, S, K, rank]
        codes = net.weight("dflash.selector.succ_cb").to(net.dtype)[place]  # [A, S, K, rank]
        scores = best[..., None, :] + (gate @ codes.transpose(-1, -2)).float()
        pair = scores.log_softmax(-1)
    return ids, pair


def replay(drafts: Drafts, truth: I32, budget: int) -> int:
    """Rounds until `truth` is written, its first token given. budget 0: the most likely chain."""
    at = rounds = 0
    while at < len(truth) - 1:
        tokens, pair = drafts.tokens[at], drafts.pair[at]
        ahead = truth[at + 1 :]
        found = (
            tree_length(tokens, pair, ahead, budget)
            if budget
            else chain_length(tokens, pair, ahead)
        )
        at += found + 1
        rounds += 1
    return rounds


def chain_length(tokens: I32, pair: F32, ahead: I32) -> int:
    """How many tokens of the greedy walk agree with `ahead`."""
    previous = 0
    for slot in range(min(len(tokens), len(ahead))):
        previous = int(pair[slot, previous].argmax())
        if tokens[slot, previous] != ahead[slot]:
            return slot
    return min(len(tokens), len(ahead))


def tree_length(tokens: I32, pair: F32, ahead: I32, budget: int) -> int:
    """How deep `ahead` lies in the tree of the `budget` most likely paths (DDTree's best-first order)."""
    # The true path's own probabilities; None where a candidate is missing.
    found, previous = 0, 0
    heap: list[tuple[float, int, int, bool]] = []

    def push(slot: int, parent: int, score: float, on_path: bool) -> None:
        if slot < len(tokens):
            for j, logp in enumerate(pair[slot, parent]):
                right = on_path and slot < len(ahead) and tokens[slot, j] == ahead[slot]
                heapq.heappush(heap, (score - float(logp), slot, j, right))

    push(0, previous, 0.0, True)
    for _ in range(budget):
        if not heap:
            break
        cost, slot, j, right = heapq.heappop(heap)
        if right:
            found = slot + 1
        push(slot + 1, j, cost, right)
    return found
