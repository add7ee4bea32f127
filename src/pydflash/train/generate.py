"""generate: many continuations at once, by a dense target over a cache with a slot for each sequence.

A finished sequence's slot is refilled with the next prompt. On a GPU a step is one captured graph for each
bucket of cache length; every number a step needs lives on the device, the host looks every few steps.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from pydflash.errors import ConfigError
from pydflash.train.target import Order

if TYPE_CHECKING:
    from pydflash.train.dense import DenseTarget

Tensor = torch.Tensor
_LOOK_EVERY = 16  # steps between looks of the host
_BUCKET = 128  # cache positions


def generate(
    target: "DenseTarget",
    order: Order,
    progress: Callable[[int], None],
    slots: int | None = None,
) -> list[list[int]]:
    """The continuations in the prompts' order. `slots` sequences run together."""
    if not order.prompts:
        return []
    wanted = slots or (1024 if target.device.type == "cuda" else 16)
    with torch.inference_mode():
        return _Run(target, order, min(wanted, len(order.prompts))).all(progress)


class _Run:
    """The state of one order."""

    def __init__(self, target: "DenseTarget", order: Order, slots: int) -> None:
        self.target, self.order, self.slots = target, order, slots
        c, device = target.config, target.device
        # The longest is popped first: what is left for the end is short.
        self.queue = sorted(range(len(order.prompts)), key=lambda i: len(order.prompts[i]))
        longest = max(map(len, order.prompts))
        if longest + order.max_new > c.max_positions:
            raise ConfigError(
                f"a prompt of {longest} tokens and {order.max_new} new ones exceed the model's "
                f"{c.max_positions} positions; lower --max-new or drop the prompt"
            )
        room = longest + order.max_new + _LOOK_EVERY
        self.size = -(-room // _BUCKET) * _BUCKET
        shape = (c.layers, 2, slots, c.kv_heads, self.size, c.head_dim)
        self.cache = torch.zeros(shape, dtype=target.dtype, device=device)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)  # stored positions
        self.ends = torch.zeros(slots, dtype=torch.long, device=device)
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.temperature = torch.zeros(slots, device=device)
        self.written = torch.zeros(slots, self.size, dtype=torch.long, device=device)
        self.stop = torch.tensor(sorted(order.stop), device=device)
        self.rng = torch.Generator(device).manual_seed(order.seed)
        self.every = torch.arange(slots, device=device)
        self.positions = torch.arange(self.size, device=device)
        self.owner: list[int | None] = [None] * slots
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def all(self, progress: Callable[[int], None]) -> list[list[int]]:
        results: list[list[int]] = [[] for _ in self.order.prompts]
        while True:
            done = self.done.cpu()
            finished = [s for s in range(self.slots) if done[s] and self.owner[s] is not None]
            if finished:
                progress(self._collect(finished, results))
            free = [s for s in range(self.slots) if self.owner[s] is None]
            if self.queue and free:
                self._refill(free[: len(self.queue)])
                continue  # a first token may have ended a sequence
            if not any(owner is not None for owner in self.owner):
                return results
            self._steps()

    def _collect(self, slots: list[int], results: list[list[int]]) -> int:
        index = torch.tensor(slots, device=self.target.device)
        rows, ends = self.written[index].cpu().numpy(), (self.lengths[index] + 1).tolist()
        made = 0
        for row, end, slot in zip(rows, ends, slots, strict=True):
            owner = self.owner[slot]
            assert owner is not None
            results[owner] = row[len(self.order.prompts[owner]) : end].tolist()
            made += len(results[owner])
            self.owner[slot] = None
        return made

    def _refill(self, slots: list[int]) -> None:
        device = self.target.device
        # A batch of prompts of about equal length; how many is bounded for the sake of memory.
        slots = slots[:256]
        chosen = [self.queue.pop() for _ in slots]
        prompts = [self.order.prompts[i] for i in chosen]
        width = max(map(len, prompts))
        rows = torch.tensor([[*p, *[0] * (width - len(p))] for p in prompts], device=device)
        index = torch.tensor(slots, device=device)
        lengths = torch.tensor([len(p) for p in prompts], device=device)

        def keep(layer: int, k: Tensor, v: Tensor) -> None:
            self.cache[layer, 0, index, :, :width] = k
            self.cache[layer, 1, index, :, :width] = v

        x = self.target.run(rows, keep=keep)
        last = self.target.score(x[torch.arange(len(slots), device=device), lengths - 1])
        self.temperature[index] = torch.tensor(
            [float(self.order.temperatures[i]) for i in chosen], device=device
        )
        token = self._draw(last, self.temperature[index])
        self.lengths[index], self.tokens[index] = lengths, token
        self.ends[index] = lengths + self.order.max_new
        self.written[index, lengths] = token
        ended = torch.isin(token, self.stop) | (self.order.max_new <= 1)
        self.done[index] = ended
        for slot, owner in zip(slots, chosen, strict=True):
            self.owner[slot] = owner

    def _steps(self) -> None:
        running = ~self.done
        longest = int(torch.where(running, self.lengths, 0).max()) + _LOOK_EVERY + 1
        size = min(-(-longest // _BUCKET) * _BUCKET, self.size)
        if self.target.device.type != "cuda":
            for _ in range(_LOOK_EVERY):
                self._step(size)
            return
        if size not in self.graphs:
            self.graphs[size] = self._capture(size)
        for _ in range(_LOOK_EVERY):
            self.graphs[size].replay()

    def _capture(self, size: int) -> "torch.cuda.CUDAGraph":
        # Warm-up and capture advance nothing: every slot is held still meanwhile.
        done = self.done.clone()
        self.done.fill_(True)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.rng)
        with torch.cuda.graph(graph):
            self._step(size)
        self.done.copy_(done)
        return graph

    def _step(self, size: int) -> None:
        """One token for every running slot; the others repeat themselves without effect."""
        target, c = self.target, self.target.config
        x = target.token_embd[self.tokens][:, None].float()  # [B, 1, E]
        cos, sin = self.rope(self.lengths)
        mask = (self.positions[:size] <= self.lengths[:, None])[:, None, None]  # [B, 1, 1, S]
        group = c.heads // c.kv_heads
        for i, layer in enumerate(target.layers):
            q, k, v = target.project(layer, x, cos, sin)
            self.cache[i, 0, self.every, :, self.lengths] = k[:, :, 0]
            self.cache[i, 1, self.every, :, self.lengths] = v[:, :, 0]
            # The heads of a group are rows of one query: attention reads a key once for them all.
            q = q.view(self.slots, c.kv_heads, group, c.head_dim)
            keys, values = self.cache[i, 0, :, :, :size], self.cache[i, 1, :, :, :size]
            seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = target.finish(layer, x, seen.reshape(self.slots, 1, -1))
        token = self._draw(target.score(x[:, 0]), self.temperature)
        running = ~self.done
        token = torch.where(running, token, self.tokens)
        self.lengths.add_(running)
        self.written[self.every, self.lengths] = token
        self.tokens.copy_(token)
        ended = torch.isin(token, self.stop) | (self.lengths + 1 >= self.ends)
        self.done.logical_or_(ended)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        rope = self.target.rope
        return rope.cos[positions][:, None], rope.sin[positions][:, None]

    def _draw(self, logits: Tensor, temperature: Tensor) -> Tensor:
        """Gumbel noise where the temperature is above 0, its tail cut by min-p."""
        noise = torch.empty_like(logits).exponential_(generator=self.rng).log_().neg_()
        heat = temperature[:, None].clamp_min(1e-4)
        scaled = logits / heat
        floor = scaled.amax(-1, keepdim=True) + math.log(max(self.order.min_p, 1e-9))
        drawn = (scaled + noise).masked_fill(scaled < floor, -torch.inf).argmax(-1)
        return torch.where(temperature > 0, drawn, logits.argmax(-1))
