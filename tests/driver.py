"""Driver: runs a loaded model step by step, without the engine's policy. For tests."""

from pathlib import Path

import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.engine.batch import RowWork, build
from pydflash.engine.request import Phase, Request, Sequence
from pydflash.engine.scheduler import Row
from pydflash.engine.states import layer_states
from pydflash.kernels.ops import RowKind, Span
from pydflash.kernels.record import Again, recorder
from pydflash.models.load import describe
from pydflash.sampling.params import SamplingParams
from pydflash.spec.proposal import Proposal
from pydflash.state.base import recurrent_specs
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from pydflash.state.sequence import SequenceState
from tests.backends import table

Tensor = torch.Tensor
Part = tuple[SequenceState, Phase, list[int] | Proposal]


class Driver:
    """One model and its pages. Every step returns the logits of all its exact tokens, or a chunk's last."""

    def __init__(
        self,
        path: Path,
        *,
        ops: str,
        threads: int = 1,
        kv: str = "f32",
        pages: int = 64,
        slots: int = 32,
        captured: bool = False,
    ) -> None:
        """`captured`: commits are, by the device's own graphs or what stands for them."""
        self.ops = table(ops, threads)
        self.checkpoint = open_checkpoint(path)
        described = describe(self.checkpoint)
        self.model = described.load(self.ops, described.config.max_positions)
        self.pool = PagePool(pages)
        specs = self.model.state_specs()
        record = (recorder(self.ops) or Again()) if captured else None
        self.kv = KvStore(specs, pages, kv, kv, self.ops, scratch=captured, record=record)
        recurrent = recurrent_specs(specs)
        self.recurrent = RecurrentStore(recurrent, slots, self.ops) if recurrent else None
        self.layers = layer_states(specs, self.kv, self.recurrent)

    def state(self) -> SequenceState:
        return SequenceState(self.pool, self.kv, self.recurrent)

    def prefill(self, state: SequenceState, tokens: list[int], chunk: int = 32) -> Tensor:
        """Store tokens in prompt chunks; logits f32 [V] of the last."""
        while tokens:
            room = chunk - state.length % chunk
            logits = self.step([(state, Phase.PREFILL, tokens[:room])])[0]
            state.extend(len(tokens[:room]))
            tokens = tokens[room:]
        return logits[-1]

    def prefill_all(self, state: SequenceState, tokens: list[int], chunk: int = 256) -> Tensor:
        """Store tokens in prompt chunks; logits f32 [n, V] of each."""
        last = len(self.model.blocks) - 1
        model, outputs = self.model, []
        for start in range(0, len(tokens), chunk):
            piece = tokens[start : start + chunk]
            self.step([(state, Phase.PREFILL, piece)], taps=frozenset({last}))
            state.extend(len(piece))
            spans = (Span(0, len(piece), RowKind.EXACT),)
            x = self.taps[last]
            outputs.append(
                self.ops.norm_linear(x, model.output_norm, model.eps, model.output, spans)
            )
        return torch.cat(outputs).cpu()

    def decode(self, state: SequenceState, tokens: list[int]) -> Tensor:
        """Store tokens one step at a time; logits f32 [n, V] of each."""
        rows = []
        for token in tokens:
            rows.append(self.step([(state, Phase.DECODE, Proposal.root(token))])[0])
            state.extend(1)
        return torch.cat(rows)

    def verify(self, state: SequenceState, proposal: Proposal) -> Tensor:
        """Logits f32 [N, V] of every node; nothing is committed."""
        return self.step([(state, Phase.DECODE, proposal)])[0]

    def step(self, parts: list[Part], taps: frozenset[int] = frozenset()) -> list[Tensor]:
        """One forward over several rows, exact ones first; their logits. `self.taps` is set."""
        work = []
        for state, phase, what in parts:
            proposal = what if isinstance(what, Proposal) else None
            tokens = list(what.tokens) if isinstance(what, Proposal) else list(what)
            sequence = _sequence([0] * state.length + tokens, phase)
            sequence.stored = state.length
            state.reserve(len(tokens))
            work.append(RowWork(Row(sequence, phase, len(tokens)), state, proposal))
        batch = build(work, self.ops.device)
        output = self.model.forward(batch, self.layers, taps)
        self.taps = output.taps
        counts = [
            len(w.proposal.tokens) if w.proposal is not None else int(w.row.phase is Phase.PREFILL)
            for w in work
        ]
        return list(output.logits.cpu().split(counts))


def _sequence(tokens: list[int], phase: Phase) -> Sequence:
    request = Request(prompt=tuple(tokens), params=SamplingParams(), seed=0)
    return Sequence(request=request, max_tokens=1, tokens=tokens, phase=phase)
