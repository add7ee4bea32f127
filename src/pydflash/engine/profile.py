"""What steps cost on this machine, measured at load: the policy's first idea of rows and seconds.

Runs on scratch pages that are free again afterwards; nothing of it can be seen in any answer.
"""

import time
from collections.abc import Sequence as Many

from pydflash.engine import batch as batches
from pydflash.engine.batch import RowWork
from pydflash.engine.request import Phase, Request, Sequence
from pydflash.engine.scheduler import Row
from pydflash.engine.states import States
from pydflash.models.base import Model
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from pydflash.state.sequence import SequenceState

ROWS = (1, 2, 4, 8, 16, 32)
SECONDS = 0.25  # spent at most, but for the first row count; a large model is measured less


def measure_steps(model: Model, states: States, most: int) -> list[tuple[int, int, float]]:
    """(rows, context 0, seconds) of exact steps of up to `most` rows; the faster of two tries each."""
    measured = []
    begun = time.perf_counter()
    _step(model, states, 1)  # the first finds cold caches
    for rows in sorted({min(n, most) for n in ROWS}):
        best = min(_step(model, states, rows), _step(model, states, rows))
        measured.append((rows, 0, best))
        if time.perf_counter() - begun + 4 * best > SECONDS:
            break
    return measured


def _step(model: Model, states: States, rows: int) -> float:
    state = SequenceState(states.pool, states.kv, states.recurrent)
    tokens = [i % model.vocab_size for i in range(1, rows + 1)]
    sequence = _sequence(tokens)
    try:
        begun = time.perf_counter()
        state.reserve(rows)
        work = RowWork(Row(sequence, Phase.DECODE, rows), state, Proposal.chain(tokens))
        batch = batches.build([work], states.kv.ops.device)
        model.forward(batch, states.layers)
        return time.perf_counter() - begun
    finally:
        state.release()


def _sequence(tokens: Many[int]) -> Sequence:
    request = Request(prompt=tuple(tokens), params=SamplingParams(), seed=0)
    return Sequence(request=request, max_tokens=1, tokens=list(tokens))
