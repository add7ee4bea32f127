"""Trainer: steps, averaged weights, checkpoints. The same recipe and data give the same drafter,
resumed or not.

Everything random is a function of seed and step, so a checkpoint holds no generator.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pydflash.errors import CheckpointError
from pydflash.train.acceptance import measure
from pydflash.train.batches import Batch, batches, draw_anchors
from pydflash.train.documents import Document
from pydflash.train.features import Features
from pydflash.train.loss import cross_entropies, labels_of, slot_weights, total
from pydflash.train.network import DraftNet
from pydflash.train.recipe import TrainRecipe
from pydflash.train.target import Target

Tensor = torch.Tensor


@dataclass(slots=True)
class History:
    """What happened: (step, loss), and (step, acceptance by domain and way)."""

    loss: list[tuple[int, float]] = field(default_factory=list)
    acceptance: list[tuple[int, dict[str, dict[str, float]]]] = field(default_factory=list)


class Trainer:
    """Trains `net` on `documents`; `held` are never trained on."""

    def __init__(
        self,
        net: DraftNet,
        target: Target,
        documents: Sequence[Document],
        held: Sequence[Document],
        recipe: TrainRecipe,
    ) -> None:
        self.net, self.target, self.recipe = net, target, recipe
        self.documents, self.held = documents, held
        self.features = Features(target, net.config.target_layers)
        self.step = 0
        self.history = History()
        self.parameters = list(net.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=recipe.lr,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=target.device.type == "cuda",
        )

    def run(
        self,
        *,
        until: int | None = None,
        keep: Path | None = None,
        tell: Callable[[int, float], bool] = lambda step, loss: True,
    ) -> None:
        """Train up to step `until` (default: all). Measures and writes `keep` as the recipe says.

        `tell(step, loss)` hears of every tenth step and ends the run early by returning False.
        """
        recipe, end = self.recipe, until or self.recipe.steps
        source = batches(
            self.documents,
            tokens=recipe.tokens,
            max_len=recipe.max_len,
            seed=recipe.seed,
            first=self.step,
        )
        while self.step < end:
            loss = self.train_step(next(source))
            if self.step % 10 == 0 or self.step == end:
                value = float(loss)
                self.history.loss.append((self.step, value))
                if not math.isfinite(value):
                    raise CheckpointError(
                        f"the loss is {value} at step {self.step}; lower the learning rate"
                    )
                if not tell(self.step, value):
                    break
            if self.step % recipe.evaluate_every == 0:
                self.measure()
                if keep is not None:
                    self.save(keep)

    def train_step(self, batch: Batch) -> Tensor:
        """One update; the loss as it was before."""
        recipe, net = self.recipe, self.net
        anchors = draw_anchors(batch, recipe.blocks, recipe.seed, self.step)
        batch, anchors = batch.to(self.target.device), anchors.to(self.target.device)
        whole = net.config.block_size
        length = whole if self.step % 4 == 3 else min(recipe.short_block, whole)
        hidden = net(self.features.of(batch), batch.tokens, anchors.clamp_min(0), length)
        labels = labels_of(net, batch.tokens, batch.lengths, anchors, length - 1)
        final, unary = cross_entropies(net, hidden, labels)
        weights = slot_weights(recipe.loss, recipe.gamma, final, labels)
        loss = total(final, unary, weights, recipe.unary, net.config.selector is not None)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, recipe.clip)
        self.optimizer.step()
        self.step += 1
        decay = min(recipe.ema, (1 + self.step) / (10 + self.step))
        values = [p.detach() for p in self.parameters]
        torch._foreach_lerp_(self.average, values, 1 - decay)
        return loss.detach()

    def rate(self, step: int) -> float:
        """Linear up, then a cosine down to 2 % of the peak."""
        recipe = self.recipe
        if step < recipe.warmup:
            return recipe.lr * (step + 1) / recipe.warmup
        done = (step - recipe.warmup) / max(recipe.steps - recipe.warmup, 1)
        return recipe.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))

    def measure(
        self, documents: Sequence[Document] | None = None, trees: Sequence[int] = (16,)
    ) -> dict[str, dict[str, float]]:
        """Acceptance of the averaged weights on held-out documents; noted in the history."""
        current = [p.detach().clone() for p in self.parameters]
        self.use(self.average)
        found = measure(
            self.net,
            self.target,
            self.held if documents is None else documents,
            max_len=self.recipe.max_len,
            slots=min(self.net.config.slots, max(self.recipe.short_block - 1, 1)),
            trees=trees,
        )
        self.use(current)
        if documents is None:
            self.history.acceptance.append((self.step, found))
        return found

    def use(self, values: Sequence[Tensor]) -> None:
        """Set the network's weights."""
        with torch.no_grad():
            torch._foreach_copy_([p.data for p in self.parameters], list(values))

    def save(self, path: Path) -> None:
        """Write everything a later run needs to go on."""
        partial = path.with_suffix(".part")
        torch.save(
            {
                "step": self.step,
                "weights": [p.detach() for p in self.parameters],
                "average": self.average,
                "optimizer": self.optimizer.state_dict(),
                "feature_rms": self.net.feature_rms,
                "ids": self.net.ids,
                "loss": self.history.loss,
                "acceptance": self.history.acceptance,
            },
            partial,
        )
        partial.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same recipe and data."""
        state = read_checkpoint(path, self.target.device)
        shapes = [tuple(w.shape) for w in state["weights"]]
        if shapes != [tuple(p.shape) for p in self.parameters] or not torch.equal(
            state["ids"], self.net.ids
        ):
            raise CheckpointError(
                f"{path} belongs to a drafter of other dimensions or data; start in a new directory"
            )
        self.use(state["weights"])
        self.average = state["average"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.net.feature_rms = state["feature_rms"]
        self.step = state["step"]
        self.history = History([tuple(x) for x in state["loss"]], list(state["acceptance"]))


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What `save` wrote. Raises CheckpointError for anything else."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes make it raise
        raise CheckpointError(f"{path} is not a training checkpoint ({error})") from error
    return state
