"""Features of training documents: computed for each batch, or all of them once and kept on the device."""

from collections.abc import Callable, Sequence

import torch

from pydflash.train.batches import Batch, collate
from pydflash.train.documents import Document
from pydflash.train.target import Target

Tensor = torch.Tensor


class Features:
    """What the drafter reads of the target, for batches of one list of documents."""

    def __init__(self, target: Target, layers: Sequence[int]) -> None:
        self.target, self.layers = target, tuple(layers)
        self._kept: Tensor | None = None
        self._first = torch.empty(0)

    def of(self, batch: Batch) -> Tensor:
        """[R, T, n * E] for a batch on the device; behind a document's end the numbers mean nothing."""
        if self._kept is None:
            return self.target.features(batch.tokens, self.layers).clone()
        width = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        at = self._first[batch.index][:, None] + width
        return self._kept[at.clamp_max_(len(self._kept) - 1)]

    def keep(
        self,
        documents: Sequence[Document],
        *,
        tokens: int,
        max_len: int,
        progress: Callable[[int], None] = lambda n: None,
    ) -> None:
        """Compute all of `documents`, in bf16 on the device. It must have room (see `nbytes_of`)."""
        sizes = [min(len(d.tokens), max_len) for d in documents]
        first = [0]
        for size in sizes:
            first.append(first[-1] + size)
        device, width = self.target.device, len(self.layers) * self.target.shape.hidden
        kept = torch.empty(first[-1], width, dtype=torch.bfloat16, device=device)
        order = sorted(range(len(documents)), key=sizes.__getitem__)
        while order:
            count = max(1, tokens // sizes[order[-1]])
            group, order = order[-count:], order[:-count]
            batch = collate([documents[i] for i in group], max_len).to(device)
            rows = self.target.features(batch.tokens, self.layers)
            inside = torch.arange(rows.shape[1], device=device) < batch.lengths[:, None]
            starts = torch.tensor([first[i] for i in group], device=device)
            at = starts[:, None] + torch.arange(rows.shape[1], device=device)
            kept[at[inside]] = rows[inside].to(torch.bfloat16)
            progress(int(batch.lengths.sum()))
        self._kept, self._first = kept, torch.tensor(first[:-1], device=device)


def nbytes_of(documents: Sequence[Document], max_len: int, width: int) -> int:
    """Bytes that `keep` takes; `width` numbers a position."""
    return 2 * width * sum(min(len(d.tokens), max_len) for d in documents)
