"""Run the engine on a GPU over model files, and say in a line each what holds and what does not.

    python -m tests.gpu.check MODEL.gguf... [--drafter DRAFTER.gguf] [--ops triton] [--ctx 2048]

Needs torch, Triton and numpy, nothing else. Each check stands alone; the exit status counts failures.
"""

import argparse
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

os.environ.setdefault("PYDFLASH_TEST_DEVICE", "cuda")

from pydflash.checkpoint.files import open_checkpoint
from pydflash.draft.dflash import DFlash
from pydflash.draft.files import open_drafter
from pydflash.engine.batch import RowWork
from pydflash.engine.engine import Engine
from pydflash.engine.graphs import GraphPool, Ran
from pydflash.engine.request import Phase, Request, Sequence
from pydflash.engine.scheduler import Row
from pydflash.engine.states import States, layer_states
from pydflash.kernels.upload import wait
from pydflash.models.load import describe
from pydflash.sampling.params import SamplingParams
from pydflash.spec.cost import CostModel
from pydflash.spec.policy import Policy, Settings
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import Proposer
from pydflash.spec.speculator import Speculator
from pydflash.state.base import recurrent_specs
from pydflash.state.kv import KvStore
from pydflash.state.pages import PagePool
from pydflash.state.recurrent import RecurrentStore
from tests.backends import table

Tensor = torch.Tensor
PROMPT = [(7 * i * i + 13 * i + 5) % 997 + 3 for i in range(90)]


class Box:
    """A model on a device with states of its own."""

    def __init__(self, path: Path, ops: str, ctx: int) -> None:
        self.ops = table(ops, threads=os.cpu_count() or 1)
        self.ctx = ctx
        self.model = describe(open_checkpoint(path)).load(self.ops, ctx)
        specs = self.model.state_specs()
        gpu = self.ops.device.type != "cpu"
        pages = 4 * (-(-ctx // 32))
        kv = KvStore(specs, pages, "f16", "f16", self.ops, scratch=gpu)
        hybrid = recurrent_specs(specs)
        recurrent = RecurrentStore(hybrid, 24, self.ops, scratch=gpu) if hybrid else None
        pool = PagePool(pages)
        self.states = States(pool, kv, recurrent, layer_states(specs, kv, recurrent))

    def graphs(self, taps: tuple[int, ...] = (), *, captured: bool = True) -> GraphPool:
        graphs = GraphPool(self.model, self.states, max_ctx=self.ctx, taps=taps)
        graphs.captures = graphs.captures and captured
        return graphs

    def engine(
        self, *, captured: bool = True, proposer: Proposer | None = None, running: int = 4
    ) -> Engine:
        taps = proposer.taps if proposer is not None else ()
        self.states.cache = None
        return Engine(
            self.model,
            self.states,
            max_ctx=self.ctx,
            max_running=running,
            prefill_chunk=64,
            max_exact_rows=64,
            eog=frozenset(),
            proposer=proposer,
            graphs=self.graphs(taps, captured=captured),
        )

    def prefill(self, tokens: list[int]):
        """A state that holds these, and logits of the last."""
        state = self.states.new()
        while state.length < len(tokens):
            piece = tokens[state.length : state.length + 64]
            ran = self.run(self.graphs(captured=False), state, Phase.PREFILL, piece, tokens)
            state.extend(len(piece))
        return state, ran.logits.clone()

    def run(
        self, graphs: GraphPool, state, phase: Phase, tokens: list[int], whole=None, tree=None
    ) -> Ran:
        state.reserve(len(tokens))
        request = Request(prompt=tuple(whole or tokens), params=SamplingParams(), seed=0)
        sequence = Sequence(request=request, max_tokens=1, tokens=list(whole or tokens))
        sequence.stored = state.length if whole else 0
        proposal = None if phase is Phase.PREFILL else tree or Proposal.chain(tokens)
        return graphs.forward([RowWork(Row(sequence, phase, len(tokens)), state, proposal)])


def tree_of(tokens: list[int], dice: random.Random) -> Proposal:
    """A random tree, parents before children."""
    parents = [-1, *(dice.randrange(i) for i in range(1, len(tokens)))]
    depth = [0]
    for p in parents[1:]:
        depth.append(depth[p] + 1)
    return Proposal(tuple(tokens), tuple(parents), tuple(depth))


def near(box: Box, path: Path) -> str:
    """Prompt and decode logits against the CPU's kernels."""
    cpu = Box(path, os.environ.get("CHECK_AGAINST", "cpu"), min(box.ctx, 256))
    rows = []
    for b in (box, cpu):
        state, last = b.prefill(PROMPT[:70])
        graphs = b.graphs(captured=False)
        out = [last.cpu()]
        for token in PROMPT[70:78]:
            out.append(b.run(graphs, state, Phase.DECODE, [token]).logits.cpu())
            state.extend(1)
        state.release()
        rows.append(torch.cat(out).double())
    mine, theirs = (r.log_softmax(-1) for r in rows)
    kl = (theirs.exp() * (theirs - mine)).sum(-1)
    same = (mine.argmax(-1) == theirs.argmax(-1)).double().mean()
    worst = f"mean KL {kl.mean():.2e}, worst {kl.max():.2e}, same best {same:.0%}"
    assert torch.isfinite(rows[0]).all(), "logits are not finite; " + worst
    assert kl.mean() < 5e-3, worst
    return worst


def bits(name: str, got: Tensor, want: Tensor) -> None:
    if not torch.equal(got, want):
        off = (got - want).abs()
        rows = (off > 0).any(-1).nonzero().flatten().tolist()
        raise AssertionError(f"{name}: rows {rows[:12]} differ, by up to {off.max():.3e}")


def invariant(box: Box) -> str:
    """Eager: a chain, a tree's path and steps of one token give the same bits."""
    state, _ = box.prefill(PROMPT[:70])
    dice = random.Random(0)
    graphs = box.graphs(captured=False)
    for count in (2, 5, 16, 24, 33):
        tokens = [dice.randrange(3, 900) for _ in range(count)]
        tree = tree_of(tokens, dice)
        whole = box.run(graphs, state, Phase.DECODE, tokens, tree=tree).logits.clone()
        leaf = max(range(count), key=lambda i: tree.depth[i])
        route = tree.path(leaf)
        chain = [tokens[i] for i in route]
        line = box.run(graphs, state, Phase.DECODE, chain).logits.clone()
        bits(f"tree of {count} and its chain of {len(chain)}", whole[list(route)], line)
        other, _ = box.prefill(PROMPT[:70])
        for i, token in enumerate(chain):
            one = box.run(graphs, other, Phase.DECODE, [token]).logits
            bits(f"chain of {len(chain)} and single steps, at {i}", line[i : i + 1], one)
            other.extend(1)
        # The state as the tree's commit leaves it, against the one that went there step by step.
        box.run(graphs, state, Phase.DECODE, tokens, tree=tree)
        box.states.commit([state], [route])
        after = [box.run(graphs, s, Phase.DECODE, [5]).logits.clone() for s in (state, other)]
        bits(f"after committing {len(chain)} of {count}", *after)
        state.release()
        other.release()
        state, _ = box.prefill(PROMPT[:70])
    state.release()
    return "trees, chains, single steps and commits agree"


def captured(box: Box) -> str:
    """Captured forwards against eager ones, over widths, and again after other contents."""
    eager, graphs = box.graphs(captured=False), box.graphs()
    dice = random.Random(1)
    begun = time.perf_counter()
    graphs.capture(list(range(1, 65)))
    took = time.perf_counter() - begun
    state, _ = box.prefill(PROMPT[:70])
    for count in (1, 24, 3, 7, 16, 5, 1, 33, 64, 2):
        tokens = [dice.randrange(3, 900) for _ in range(count)]
        tree = tree_of(tokens, dice)
        a = box.prefill(PROMPT[:70])[0] if count == 1 else state
        want = box.run(eager, a, Phase.DECODE, tokens, tree=tree).logits.clone()
        if a is not state:
            a.release()
        b = box.prefill(PROMPT[:70])[0] if count == 1 else state
        got = box.run(graphs, b, Phase.DECODE, tokens, tree=tree).logits.clone()
        if b is not state:
            b.release()
        bits(f"captured and eager step of {count}", got, want)
    state.release()
    return f"{graphs.captured} forwards captured in {took:.1f} s"


class Known:
    """Drafts trees around continuations that are known, some nodes wrong."""

    max_nodes, taps = 12, ()

    def __init__(self, texts: list[list[int]]) -> None:
        self.texts, self.dice, self.settled, self.rounds = texts, random.Random(2), 0, 0

    def propose(self, rows, beside=0):
        return [self._tree(list(r.tokens)) for r in rows]

    def settle(self, contexts, outcomes, spent) -> None:
        self.rounds += len(outcomes)
        self.settled += sum(len(o.drawn) for o in outcomes)

    def grown(self, rows, limit) -> None:
        pass

    def prepare(self, rows, beside=0, *, grow=True) -> None:
        pass

    def _tree(self, history: list[int]) -> Proposal:
        truth = next((t[len(history) :] for t in self.texts if t[: len(history)] == history), [])
        tokens, parents, depth, at = [history[-1]], [-1], [0], 0
        for token in truth[: self.dice.randrange(6)]:
            for guess in [token] if self.dice.random() < 0.5 else [token ^ 1, token]:
                if len(tokens) < self.max_nodes and guess not in [
                    t for t, p in zip(tokens, parents, strict=True) if p == at
                ]:
                    tokens.append(guess)
                    parents.append(at)
                    depth.append(depth[at] + 1)
            at = len(tokens) - 1
        return Proposal(tuple(tokens), tuple(parents), tuple(depth))


def asked(count: int) -> list[Request]:
    kinds = [
        SamplingParams(max_tokens=count, ignore_eos=True),
        SamplingParams(max_tokens=count, temperature=0.8, top_k=40, top_p=0.95, ignore_eos=True),
        SamplingParams(max_tokens=count, temperature=1.0, ignore_eos=True),
        SamplingParams(max_tokens=count, temperature=0.7, repetition_penalty=1.2, ignore_eos=True),
    ]
    cuts = [70, 33, 5, 64]
    return [
        Request(prompt=tuple(PROMPT[:n]), params=p, seed=i)
        for i, (n, p) in enumerate(zip(cuts, kinds, strict=True))
    ]


def answers(engine: Engine, requests: list[Request], apart: bool = False) -> list[list[int]]:
    said: dict[int, list[int]] = {r.id: [] for r in requests}
    waiting = list(requests)
    while waiting or not engine.is_idle:
        if waiting and (engine.is_idle or not apart):
            engine.add(waiting.pop(0))
        for result in engine.step():
            if result.error is not None:
                raise result.error
            said[result.sequence.request.id] += [d.token for d in result.draws]
        engine.states.check()
    return [said[r.id] for r in requests]


def same_text(name: str, got: list[list[int]], want: list[list[int]]) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
            raise AssertionError(f"{name}: request {i} differs from token {at} on of {len(b)}")


def texts(box: Box) -> str:
    """Greedy and sampled: eager, captured, captured together, with trees, eagerly with trees."""
    count = 40
    plain = answers(box.engine(captured=False, running=1), asked(count), apart=True)
    same_text("captured", answers(box.engine(running=1), asked(count), apart=True), plain)
    same_text("together", answers(box.engine(), asked(count)), plain)
    known = [[*r.prompt, *said] for r, said in zip(asked(count), plain, strict=True)]
    drafts = Known(known)
    same_text("with trees", answers(box.engine(proposer=drafts), asked(count)), plain)
    eager = box.engine(proposer=Known(known), captured=False)
    same_text("eagerly with trees", answers(eager, asked(count)), plain)
    return f"{drafts.settled / drafts.rounds:.2f} tokens a round"


def drafted(box: Box, path: Path, target: Path) -> str:
    """With the drafter: the same text, captured; and how its proposals fare."""
    file = open_drafter(path)
    stored, checkpoint = file.tensors(), open_checkpoint(target)
    from dataclasses import replace

    def output_rows(ids: Tensor):
        name = "output.weight" if "output.weight" in checkpoint.tensors else "token_embd.weight"
        whole = checkpoint.tensor(name)
        return replace(whole, data=whole.data[ids], shape=(len(ids), whole.cols))

    drafter = DFlash(
        file.config,
        stored.get,
        box.ops,
        token_embd=box.model.token_embd,
        output=box.model.output,
        max_positions=box.ctx,
        output_rows=output_rows,
    )
    plain = answers(box.engine(captured=False, running=1), asked(40), apart=True)
    cost = CostModel()
    cost.profile([(n, 0, 0.005 + n * 1e-5) for n in (1, 8, 32)], [(n, 1, 1e-3) for n in (1, 15)])
    settings = Settings(mode="tree", budget=15, max_slots=drafter.slots, max_nodes=16)
    box.states.rings = drafter.open_store(8, min(box.ctx, 1024))
    try:
        engine = box.engine(proposer=Speculator(drafter, Policy(settings, cost), box.ops))
        begun = time.perf_counter()
        same_text("with the drafter", answers(engine, asked(40)), plain)
        took = time.perf_counter() - begun
    finally:
        box.states.rings = None
    return f"160 tokens in {took:.1f} s, captures included"


def speed(box: Box) -> str:
    """Milliseconds of captured steps on the device, and of a whole engine step."""
    graphs = box.graphs()
    state, _ = box.prefill(PROMPT[:70])
    out = []
    for count in (1, 4, 8, 16, 24, 32):
        tokens = PROMPT[:count]
        times = []
        for i in range(13):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun = time.perf_counter()
            start.record()
            box.run(graphs, state, Phase.DECODE, tokens)
            stop.record()
            wait(box.ops.device)
            if i >= 3:
                times.append((start.elapsed_time(stop), (time.perf_counter() - begun) * 1e3))
            if count == 1:
                state.rollback(0) if state._recurrent is not None else None
                state = state if state.length else box.prefill(PROMPT[:70])[0]
        device, host = (sorted(t[i] for t in times)[len(times) // 2] for i in (0, 1))
        out.append(f"{count}: {device:.2f} ({host:.2f} host)")
    state.release()
    engine = box.engine(running=1)
    request = Request(
        prompt=tuple(PROMPT[:70]), params=SamplingParams(max_tokens=65, ignore_eos=True), seed=0
    )
    engine.add(request)
    engine.step()
    engine.step()
    engine.step()
    begun, n = time.perf_counter(), 0
    while not engine.is_idle:
        n += sum(len(r.draws) for r in engine.step())
    per = (time.perf_counter() - begun) / n * 1e3
    return ", ".join(out) + f"; engine {per:.2f} ms a token"


def check(name: str, what: Callable[[], str]) -> bool:
    begun = time.perf_counter()
    try:
        said = what()
    except Exception as error:  # every failure is a line, and the next check goes on
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if "pydflash" in f.filename or "tests" in f.filename][-4:]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(ours))
        text = " ".join(str(error).split())[:600]
        print(f"FAIL {name}: {type(error).__name__}: {text} [{where}]", flush=True)
        return False
    print(f"ok   {name}: {said} ({time.perf_counter() - begun:.1f} s)", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--ops", default="triton")
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--only", default="near,invariant,captured,texts,drafted,speed")
    args = parser.parse_args()
    failed = 0
    for path in args.models:
        box: list[Box] = []

        def load(path: Path = path, box: list[Box] = box) -> str:
            box.append(Box(path, args.ops, args.ctx))
            if box[0].ops.device.type == "cuda":
                return f"{torch.cuda.memory_allocated() / 2**20:,.0f} MiB on the device"
            return "on the CPU"

        failed += not check(f"{path.name} load", load)
        if not box:
            continue
        b = box[0]
        checks: dict[str, Callable[[], str]] = {
            "near": lambda b=b, path=path: near(b, path),
            "invariant": lambda b=b: invariant(b),
            "captured": lambda b=b: captured(b),
            "texts": lambda b=b: texts(b),
            "speed": lambda b=b: speed(b),
        }
        if args.drafter is not None:
            checks["drafted"] = lambda b=b, path=path: drafted(b, args.drafter, path)
        for name in args.only.split(","):
            if name in checks:
                failed += not check(f"{path.name} {name}", checks[name])
        box.clear()
        del b, checks
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
