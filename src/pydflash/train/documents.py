"""Documents: prompts with the target's own answers, as token ids, and the file they are kept in.

Invariant: `start` is the first answered position; every position from it to the end was made by the target
(a document of several turns has several answers: one document each, the later ones with the earlier turns
in front).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pydflash.errors import CheckpointError

Ids = npt.NDArray[np.int32]
_GRAM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """tokens int32 [n]: the prompt and, from `start`, the answer. `domain` names what it is about."""

    tokens: Ids
    start: int
    domain: str
    greedy: bool

    @property
    def answer(self) -> Ids:
        return self.tokens[self.start :]


def repetition(answer: Ids) -> float:
    """The share of 8-grams that occurred before in the same answer; 0 for a short one."""
    grams = len(answer) - _GRAM + 1
    if grams < _GRAM:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(answer, _GRAM)
    return 1 - len({w.tobytes() for w in windows}) / grams


def without_loops(
    documents: Sequence[Document], *, limit: float = 0.5, share: float = 0.1
) -> list[Document]:
    """Documents that repeat themselves are thinned out to `share` of what is returned.

    A small model caught in a loop is easy to draft for, and would fill the data with it.
    """
    sound = [d for d in documents if repetition(d.answer) <= limit]
    loops = [d for d in documents if repetition(d.answer) > limit]
    allowed = int(len(sound) * share / (1 - share))
    return sound + loops[:allowed]


def split(
    documents: Sequence[Document], held_out: int, seed: int
) -> tuple[list[Document], list[Document]]:
    """(to train on, held out): `held_out` greedy documents of each domain, at most a tenth of it.

    Documents with equal prompts stay on one side.
    """
    order = np.random.default_rng(seed).permutation(len(documents))
    sizes = Counter(d.domain for d in documents)
    left = {domain: min(held_out, max(1, size // 10)) for domain, size in sizes.items()}
    held: list[Document] = []
    prompts: set[bytes] = set()
    for i in order:
        document = documents[i]
        prompt = document.tokens[: document.start].tobytes()
        if document.greedy and left[document.domain] > 0 and prompt not in prompts:
            left[document.domain] -= 1
            held.append(document)
            prompts.add(prompt)
    kept = [
        documents[i]
        for i in order
        if documents[i].tokens[: documents[i].start].tobytes() not in prompts
    ]
    return kept, held


def frequent_tokens(
    documents: Iterable[Document], vocab: int, count: int, always: Iterable[int]
) -> Ids:
    """The `count` ids that answers use most, ascending; those of `always` among them in any case."""
    totals = np.zeros(vocab, np.int64)
    for document in documents:
        totals += np.bincount(document.answer, minlength=vocab)
    totals[list(always)] = totals.max() + 1
    return np.sort(np.argsort(-totals, kind="stable")[:count]).astype(np.int32)


def coverage(documents: Iterable[Document], ids: Ids, vocab: int) -> float:
    """The share of answer tokens that are among `ids`."""
    known = np.zeros(vocab, np.bool_)
    known[ids] = True
    found = total = 0
    for document in documents:
        found += int(known[document.answer].sum())
        total += len(document.answer)
    return found / max(total, 1)


def save(path: Path, documents: Sequence[Document]) -> None:
    """Write documents to an .npz file."""
    domains = sorted({d.domain for d in documents})
    flat = np.concatenate([d.tokens for d in documents]) if documents else np.empty(0, np.int32)
    width = np.uint16 if not len(flat) or flat.max() < 1 << 16 else np.int32
    np.savez_compressed(
        path,
        tokens=flat.astype(width),
        lengths=np.array([len(d.tokens) for d in documents], np.int32),
        starts=np.array([d.start for d in documents], np.int32),
        domain=np.array([domains.index(d.domain) for d in documents], np.uint8),
        greedy=np.array([d.greedy for d in documents], np.bool_),
        domains=np.array(domains),
    )


def load(path: Path) -> list[Document]:
    """Read what `save` wrote."""
    try:
        with np.load(path) as file:
            flat = file["tokens"].astype(np.int32)
            lengths, starts = file["lengths"], file["starts"]
            domain, greedy = file["domain"], file["greedy"]
            domains = [str(name) for name in file["domains"]]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} holds no training documents ({error}); generate them"
        ) from error
    ends = np.cumsum(lengths)
    return [
        Document(
            tokens=flat[end - length : end],
            start=int(start),
            domain=domains[kind],
            greedy=bool(is_greedy),
        )
        for end, length, start, kind, is_greedy in zip(
            ends, lengths, starts, domain, greedy, strict=True
        )
    ]
