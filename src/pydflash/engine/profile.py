"""What steps cost on this machine, measured at load: the policy's first idea of rows and seconds.

Runs on scratch pages that are free again afterwards; nothing of it can be seen in any answer.
"""

import math
import time
from collections.abc import Sequence as Many

from pydflash.engine.batch import RowWork
from pydflash.engine.graphs import TOKENS, GraphPool
from pydflash.engine.request import Phase, Request, Sequence
from pydflash.engine.scheduler import Row
from pydflash.engine.states import States
from pydflash.kernels.upload import wait
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from pydflash.state.sequence import SequenceState

ROWS = (1, 2, 4, 8, 16)
CAPTURED = (
    1,
    2,
    4,
    8,
    16,
    24,
    32,
)  # where steps are captured: there rows cost little, up to a point
SWEEPS = 3
SECONDS = 0.4  # after which no further row count is begun: a large model is measured less


def measure_steps(graphs: GraphPool, states: States, most: int) -> list[tuple[int, int, float]]:
    """(rows, context 0, seconds) of exact steps of up to `most` rows: the best of a few sweeps.

    Sweeps, so that one busy moment of the machine does not meet every try of a row count.
    """
    best: dict[int, float] = {}
    graphs.capture([*(n for n in TOKENS if n < most), most])
    counts = sorted({min(n, most) for n in (CAPTURED if graphs.captures else ROWS)})
    begun = time.perf_counter()
    _step(graphs, states, 1)  # finds cold caches
    for _ in range(SWEEPS):
        for rows in counts:
            if time.perf_counter() - begun > SECONDS and best:
                break
            best[rows] = min(best.get(rows, math.inf), _step(graphs, states, rows))
    return [(rows, 0, seconds) for rows, seconds in best.items()]


def _step(graphs: GraphPool, states: States, rows: int) -> float:
    state = SequenceState(states.pool, states.kv, states.recurrent)
    tokens = [i % graphs.vocab_size for i in range(1, rows + 1)]
    sequence = _sequence(tokens)
    try:
        state.reserve(rows)
        wait(graphs.device)
        begun = time.perf_counter()
        work = RowWork(Row(sequence, Phase.DECODE, rows), state, Proposal.chain(tokens))
        graphs.forward([work])
        wait(graphs.device)
        return time.perf_counter() - begun
    finally:
        state.release()
        if states.recurrent is not None:
            states.recurrent.drop_tapes()


def _sequence(tokens: Many[int]) -> Sequence:
    request = Request(prompt=tuple(tokens), params=SamplingParams(), seed=0)
    return Sequence(request=request, max_tokens=1, tokens=list(tokens))
