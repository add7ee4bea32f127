"""Rig: a loaded model driven step by step, for measuring and for reading logits.

Steps and logits go to the model directly, over pages of the rig's own: what the engine's step costs before
policy. Prefill and decode run through the engine itself, sampling included. Prompts lie on the prefill grid
either way.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch

from pydflash.bench.llama_cpp import pattern
from pydflash.checkpoint.files import Checkpoint, open_checkpoint
from pydflash.config import EngineConfig
from pydflash.engine.batch import RowWork, build
from pydflash.engine.request import Phase, Request, Sequence
from pydflash.engine.scheduler import Row
from pydflash.errors import CapacityError, EngineError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.kernels.upload import wait
from pydflash.sampling.params import SamplingParams
from pydflash.service.build import load
from pydflash.spec.proposal import Proposal


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step cannot do without: bytes read and floating-point operations (a multiply-add is two)."""

    nbytes: float
    flops: float


class Rig:
    """A loaded model and one sequence of its own. Set threads and context in the config."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        loaded = load(path, config)
        self.engine = loaded.engine
        self.model = self.engine.model
        self.kv = self.engine.states.kv
        self.ops = self.kv.ops
        self.threads = loaded.threads
        self.plan = loaded.plan
        self.ctx = self.plan.max_ctx
        self.chunk = self.engine.scheduler.chunk
        self.layers = self.engine.states.layers
        self.state = self.engine.states.new()
        with open_checkpoint(path) as checkpoint:
            self._matrices = _matrices(checkpoint)
            tensors = checkpoint.tensors
            head = tensors.get("output.weight") or tensors["token_embd.weight"]
            self.head_nbytes = head.nbytes

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def cost(self, rows: int, depth: int, *, committed: int = 0) -> Cost:
        """Bytes and operations that a step of `rows` after `depth` positions needs, each byte read once.

        `committed` nodes are repeated on the recurrent states afterwards.
        """
        parts = self.costs(rows, depth, committed=committed).values()
        return Cost(nbytes=sum(c.nbytes for c in parts), flops=sum(c.flops for c in parts))

    def costs(self, rows: int, depth: int, *, committed: int = 0) -> dict[str, Cost]:
        """The same by what needs it: "products", "attention" and, of recurrent models, "delta".

        Of the experts, as many are read as independent choices of the rows would touch.
        """
        m = self._matrices
        out = {
            "products": Cost(
                nbytes=m.nbytes + m.expert_nbytes * (1 - (1 - m.share) ** rows),
                flops=2.0 * rows * (m.elements + m.share * m.expert_elements),
            ),
            "attention": Cost(
                nbytes=depth * self.kv.nbytes / (self.kv.num_pages * PAGE_SIZE),
                flops=4.0 * m.query * rows * (depth + (rows + 1) / 2),  # q k^T and p v
            ),
        }
        slots = self.engine.states.recurrent
        if slots is not None:
            state = slots.nbytes / slots.num_slots
            nbytes = 2 * state if rows == 1 else state  # one row writes it, too
            flops = 7 * rows * state / 4  # k^T S, decay S + k delta^T, q^T S
            if committed:
                nbytes += 2 * state
                flops += 3 * committed * state / 4
            out["delta"] = Cost(nbytes=nbytes, flops=flops)
        return out

    def clear(self, keep: int = 0) -> None:
        """Forget every position from `keep` on, 0 or the depth of `fill` for a recurrent model."""
        self.state.rollback(keep)

    def fill(self, depth: int) -> None:
        """Start over and store `depth` positions of the pattern."""
        self.clear()
        self.read_prompt(pattern(depth, 0, self.vocab_size))
        self.state.capture()

    def read_prompt(self, tokens: Many[int], *, every: bool = False) -> torch.Tensor:
        """Store a prompt through prefill chunks. f32 [1, V], or [len(tokens), V] when `every`."""
        prompt = self._sequence(tokens)
        outputs = []
        while self.state.length < len(tokens):
            base = self.state.length
            count = min((base // self.chunk + 1) * self.chunk, len(tokens)) - base
            prompt.stored = base
            batch = build([self._work(prompt, Phase.PREFILL, count)], self.ops.device)
            if every:
                batch = replace(batch, logit_rows=torch.arange(count, device=self.ops.device))
            outputs.append(self.model.forward(batch, self.layers).logits)
            self.state.extend(count)
        return torch.cat([o for o in outputs if len(o)])

    def verify(self, tokens: Many[int]) -> torch.Tensor:
        """Exact rows of one chain after what is stored, left uncommitted. f32 [len(tokens), V]."""
        return self._forward(self._exact(Proposal.chain(tokens))).clone()

    def force(self, tokens: Many[int], block: int = 16) -> torch.Tensor:
        """Teacher-forced logits by exact rows, `block` at a time, after what is stored. f32 [T, V]."""
        outputs = []
        for start in range(0, len(tokens), block):
            piece = tokens[start : start + block]
            outputs.append(self.verify(piece))
            self.state.extend(len(piece))
        return torch.cat(outputs)

    def step(self, rows: int, depth: int, repeats: int) -> list[float]:
        """Seconds of `repeats` exact steps of `rows` after `depth` stored positions, from a proposal on."""
        tokens = pattern(rows, depth, self.vocab_size)
        times = []
        for _ in range(repeats):
            self.clear(depth)
            work = self._exact(Proposal.chain(tokens))
            wait(self.ops.device)
            began = time.perf_counter()
            self._forward(work)
            wait(self.ops.device)
            times.append(time.perf_counter() - began)
        return times

    def tree_step(self, rows: int, depth: int, repeats: int) -> tuple[list[float], list[float]]:
        """Seconds of `repeats` exact steps over `branching(rows)`, and of each one's commit beside them.

        The path to the last node is accepted: keys and values move, recurrent states repeat it.
        """
        tree = branching(pattern(rows, depth, self.vocab_size))
        path = tree.path(rows - 1)
        steps, commits = [], []
        for _ in range(repeats):
            self.clear(depth)
            work = self._exact(tree)
            wait(self.ops.device)
            began = time.perf_counter()
            self._forward(work)
            wait(self.ops.device)
            stepped = time.perf_counter()
            self.engine.states.commit([self.state], [path])
            wait(self.ops.device)
            steps.append(stepped - began)
            commits.append(time.perf_counter() - stepped)
        return steps, commits

    def repeater(self, rows: int, depth: int, *, tree: bool = False) -> Callable[[], object]:
        """What repeats an exact step of `rows`, a chain or `branching`, on the device alone."""
        self.clear(depth)
        tokens = pattern(rows, depth, self.vocab_size)
        nodes = branching(tokens) if tree else Proposal.chain(tokens)
        work = self._exact(nodes)
        return self.engine.graphs.repeater([work])

    def committer(self, rows: int, depth: int) -> Callable[[], object]:
        """What queues the step of `branching` and its commit again, as `tree_step` has them, with no wait."""
        step = self.repeater(rows, depth, tree=True)
        path = branching(pattern(rows, depth, self.vocab_size)).path(rows - 1)
        moves = self.engine.states.adopt([self.state], [path])

        def work() -> None:
            step()
            moves.run()

        return work

    def prefill(self, count: int) -> float:
        """Seconds from a prompt of `count` tokens to the first token, through the engine."""
        began = time.perf_counter()
        for _ in self._generate(count, 1):
            pass
        return time.perf_counter() - began

    def decode(self, count: int, depth: int) -> float:
        """Seconds of `count` greedy tokens after a prompt of `depth`, through the engine."""
        tokens = self._generate(depth, count + 1)
        next(tokens)
        began = time.perf_counter()
        for _ in tokens:
            pass
        return time.perf_counter() - began

    def _forward(self, work: RowWork) -> torch.Tensor:
        """Logits of an exact step as the engine runs it, captured where it is; the next overwrites them."""
        return self.engine.graphs.forward([work]).logits

    def _exact(self, proposal: Proposal) -> RowWork:
        """A row of a request, which an engine has long before its step."""
        count = len(proposal.tokens)
        return self._work(self._sequence(proposal.tokens), Phase.DECODE, count, proposal)

    def _generate(self, depth: int, count: int) -> Iterator[int]:
        """Answer a prompt of `depth` pattern tokens with `count` tokens, one engine step after another."""
        self.clear()  # the engine may need every page
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        prompt = tuple(pattern(depth, 0, self.vocab_size))
        self.engine.add(Request(prompt=prompt, params=params, seed=0))
        while not self.engine.is_idle:
            for result in self.engine.step():
                if result.error is not None:
                    raise EngineError(f"the bench run stopped: {result.error}")
                for draw in result.draws:
                    yield draw.token

    def _sequence(self, tokens: Many[int]) -> Sequence:
        request = Request(prompt=tuple(tokens), params=SamplingParams(), seed=0)
        return Sequence(request=request, max_tokens=1, tokens=list(tokens))

    def _work(
        self, sequence: Sequence, phase: Phase, count: int, proposal: Proposal | None = None
    ) -> RowWork:
        if self.state.length + count > self.ctx:
            raise CapacityError(
                f"{self.state.length} + {count} positions exceed the bench context of {self.ctx}; "
                "ask for a smaller depth or fewer tokens"
            )
        self.state.reserve(count)
        return RowWork(Row(sequence, phase, count), self.state, proposal)


def branching(tokens: Many[int]) -> Proposal:
    """A tree in which every other node has two children, a leaf first and then the branch that goes on.

    So no node but the root lies in memory where its position would put it, on the path to the last one.
    """
    parents = [-1, *((node - 1) // 2 * 2 for node in range(1, len(tokens)))]
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    return Proposal(tuple(tokens), tuple(parents), tuple(depth))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrices:
    """Elements and bytes of the matrices that a step multiplies by; experts apart, `share` of them a token.

    `query` counts query elements of a token over all layers.
    """

    elements: int
    nbytes: int
    expert_elements: int
    expert_nbytes: int
    share: float
    query: int


def _matrices(checkpoint: Checkpoint) -> _Matrices:
    tensors = checkpoint.tensors
    untied = "output.weight" in tensors
    used = [
        t
        for t in tensors.values()
        if len(t.shape) > 1 and not (untied and t.name == "token_embd.weight")
    ]
    experts = [t for t in used if "_exps." in t.name]
    plain = [t for t in used if "_exps." not in t.name]
    meta = checkpoint.meta
    chosen = meta.int("{arch}.expert_used_count", default=0)
    return _Matrices(
        elements=sum(prod(t.shape) for t in plain),
        nbytes=sum(t.nbytes for t in plain),
        expert_elements=sum(prod(t.shape) for t in experts),
        expert_nbytes=sum(t.nbytes for t in experts),
        share=chosen / meta.int("{arch}.expert_count", default=0) if experts else 0.0,
        query=sum(t.shape[-1] for t in tensors.values() if t.name.endswith("attn_output.weight")),
    )
