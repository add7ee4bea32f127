"""Batches: documents of about equal length side by side, and anchors in them. A function of seed and step.

One document a row, so nothing crosses from one to another; rows are padded on the right, and a batch holds
a fixed number of tokens, so that long documents come in smaller batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pydflash.errors import ConfigError
from pydflash.train.documents import Document

Tensor = torch.Tensor
_POOL = 4096  # documents sorted by length at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens int64 [R, T] padded with 0; lengths, starts int64 [R]; index int64 [R] into the documents."""

    tokens: Tensor
    lengths: Tensor
    starts: Tensor
    index: Tensor

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.tokens.to(device),
            self.lengths.to(device),
            self.starts.to(device),
            self.index.to(device),
        )


def collate(
    documents: Sequence[Document], max_len: int, index: Sequence[int] | None = None
) -> Batch:
    """Documents to one batch on the CPU, each cut to `max_len`. `index`: where they stand in a list."""
    lengths = [min(len(d.tokens), max_len) for d in documents]
    tokens = torch.zeros(len(documents), max(lengths), dtype=torch.long)
    for row, document, length in zip(tokens, documents, lengths, strict=True):
        row[:length] = torch.from_numpy(document.tokens[:length].astype(np.int64))
    starts = torch.tensor([d.start for d in documents])
    where = torch.tensor(range(len(documents)) if index is None else index)
    return Batch(tokens, torch.tensor(lengths), starts, where)


def batches(
    documents: Sequence[Document], *, tokens: int, max_len: int, seed: int, first: int = 0
) -> Iterator[Batch]:
    """Without end, epoch after epoch in a new order; begins at step `first`."""
    usable = [i for i, d in enumerate(documents) if d.start + 2 <= min(len(d.tokens), max_len)]
    sizes = np.array([min(len(documents[i].tokens), max_len) for i in usable])
    if not len(sizes):
        raise ConfigError("no document has an answer to train on; generate more or raise max_len")
    step = 0
    epoch = 0
    while True:
        for group in _groups(sizes, tokens, np.random.default_rng((seed, epoch))):
            if step >= first:
                index = [usable[i] for i in group]
                yield collate([documents[i] for i in index], max_len, index)
            step += 1
        epoch += 1


def _groups(sizes: npt.NDArray[np.int64], tokens: int, rng: np.random.Generator) -> list[list[int]]:
    order = rng.permutation(len(sizes))
    groups: list[list[int]] = []
    for start in range(0, len(order), _POOL):
        pool = order[start : start + _POOL]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        group: list[int] = []
        for i in pool:
            # Ascending, so the newcomer is the longest.
            if group and (len(group) + 1) * sizes[i] > tokens:
                groups.append(group)
                group = []
            group.append(int(i))
        groups.append(group)
    return [groups[i] for i in rng.permutation(len(groups))]


def draw_anchors(batch: Batch, blocks: int, seed: int, step: int) -> Tensor:
    """int64 [R, N] ascending positions, -1 (last) where a document has fewer; about `blocks` in all.

    An anchor is an answered position with an answered one behind it, each drawn once at most.
    """
    rng = torch.Generator().manual_seed(seed * 1_000_003 + step)
    room = batch.lengths - 1 - batch.starts
    count = min(max(blocks // len(room), 1), int(room.max()))
    where = torch.arange(batch.tokens.shape[1])
    allowed = (where >= batch.starts[:, None]) & (where < batch.lengths[:, None] - 1)
    score = torch.rand(batch.tokens.shape, generator=rng).masked_fill(~allowed, -1.0)
    best, at = score.topk(count, dim=1)
    none = batch.tokens.shape[1]
    anchors = at.masked_fill(best < 0, none).sort(1).values
    return anchors.masked_fill(anchors == none, -1)
