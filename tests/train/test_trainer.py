"""Training: it learns, it resumes to the same numbers, and what is exported drafts the same."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.draft.base import DraftRow
from pydflash.draft.dflash import DFlash
from pydflash.draft.files import open_drafter
from pydflash.errors import CheckpointError, ConfigError
from pydflash.quant.tensor import QuantTensor
from pydflash.train.acceptance import candidates
from pydflash.train.dense import DenseTarget
from pydflash.train.documents import Document
from pydflash.train.export import write_drafter
from pydflash.train.harvest import Harvest
from pydflash.train.pipeline import Job, build_trainer, run
from pydflash.train.prompts import Prompt
from pydflash.train.recipe import NetworkRecipe, TrainRecipe
from pydflash.train.trainer import Trainer
from tests.driver import Driver

NETWORK = NetworkRecipe(layers=1, block_size=6, draft_vocab=200, selector_rank=8, selector_top_k=8)
RECIPE = TrainRecipe(
    steps=40, tokens=1024, blocks=96, short_block=4, lr=3e-3, warmup=5, ema=0.9, held_out=4,
    evaluate_every=20, max_len=100,
)  # fmt: skip


def trainer(target: DenseTarget, documents: list[Document], **changes: object) -> Trainer:
    network = replace(NETWORK, **{k: v for k, v in changes.items() if hasattr(NETWORK, k)})
    recipe = replace(RECIPE, **{k: v for k, v in changes.items() if hasattr(RECIPE, k)})
    job = Job(target=Path(), out=Path(), prompts=[], network=network, recipe=recipe)
    return build_trainer(job, target, documents, 1, {"target": "tiny"})


def test_acceptance_at_least_doubles(
    target_path: Path, prompts: list[Prompt], tmp_path: Path
) -> None:
    job = Job(
        target=target_path,
        out=tmp_path / "out",
        prompts=prompts,
        harvest=Harvest(own=4, follow_ups=0.1, sampled=0.1, max_new=24),
        network=replace(NETWORK, draft_vocab=0),
        recipe=replace(RECIPE, steps=120, evaluate_every=60),
        device="cpu",
        dialects=("dflash-draft", "safetensors"),
    )
    result = run(job)
    before, after = result.before["all"]["chain"], result.after["all"]["chain"]
    assert after >= 2 * before, (before, after)
    # The engine accepts what replay promises: the same text, but for prompts that are not all of them.
    assert result.engine["all"] >= 0.6 * result.after["all"]["tree 16"], result
    names = {path.name for path in result.files}
    assert names == {"drafter.gguf", "safetensors", "card.json", "training.svg"}
    with open_drafter(result.files[0]) as file:
        assert file.config.card["steps"] == "120"
        assert file.config.card["target"] == "Tiny llama"
    with pytest.raises(ConfigError, match="--resume"):
        run(job)


def test_resumed_training_is_the_same(
    target: DenseTarget, documents: list[Document], tmp_path: Path
) -> None:
    whole, first = trainer(target, documents), trainer(target, documents)
    whole.run(until=8)
    first.run(until=3)
    first.save(tmp_path / "ck.pt")
    second = trainer(target, documents)
    second.resume(tmp_path / "ck.pt")
    second.run(until=8)
    for a, b in zip(whole.parameters, second.parameters, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(whole.average, second.average, strict=True):
        assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="other dimensions"):
        trainer(target, documents, layers=2).resume(tmp_path / "ck.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="not a training checkpoint"):
        second.resume(tmp_path / "junk.pt")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"selector_rank": 0, "draft_vocab": 0},
        {"causal": False, "layers": 2},
        {"draft_vocab": 0, "warm_start": False},
    ],
)
def test_exported_drafter_drafts_what_the_network_drafts(
    target_path: Path, target: DenseTarget, documents: list[Document], tmp_path: Path, changes: dict
) -> None:
    trained = trainer(target, documents, **changes)
    trained.run(until=6)
    net, checkpoint = trained.net, open_checkpoint(target_path)
    path = write_drafter(
        net.config, net.export(), tmp_path / "d.gguf", dialect="dflash-draft", type="F32",
        target=checkpoint,
    )  # fmt: skip
    driver = Driver(target_path, ops="ref")
    embedding = checkpoint.tensor("output.weight")

    def rows(ids: torch.Tensor) -> QuantTensor:
        return replace(embedding, data=embedding.data[ids], shape=(len(ids), embedding.cols))

    with open_drafter(path) as file:
        drafter = DFlash(
            file.config, file.tensors().get, driver.ops, token_embd=driver.model.token_embd,
            output=driver.model.output, max_positions=512, output_rows=rows,
        )  # fmt: skip
        context = drafter.open_store(1, 256, "f32").open()
        assert context is not None
        document = max(documents, key=lambda d: len(d.tokens))
        anchor = len(document.tokens) - 8
        tokens = torch.from_numpy(document.tokens.astype(np.int64))[None]
        features = target.features(tokens, net.config.target_layers).clone()
        context.append(0, features[0, :anchor])
        row = DraftRow(tokens=tokens[0, : anchor + 1].tolist(), context=context)
        scores = drafter.score([row], 5, 8)[0]
    with torch.inference_mode():
        hidden = net(features, tokens, torch.tensor([[anchor]]), 6)[0]
        wanted, pair = candidates(net, hidden, tokens[0, anchor : anchor + 1])
    assert scores.slots == 5
    previous = 0
    theirs = 0
    for slot in range(5):  # the greedy path and its log-probabilities
        best = int(pair[0, slot, previous].argmax())
        logp = scores.pair[slot, theirs] if scores.pair is not None else scores.logp[slot]
        own = int(logp.argmax())
        assert int(scores.tokens[slot, own]) == int(wanted[0, slot, best])
        assert float(logp[own]) == pytest.approx(float(pair[0, slot, previous, best]), abs=2e-3)
        previous, theirs = best, own
