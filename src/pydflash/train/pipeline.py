"""pipeline: everything between a model file and a drafter's file, with a directory for what lies between.

documents.npz   the target's answers (made once; delete it to generate anew)
checkpoint.pt   weights, averages and optimiser, to go on from
*.gguf, safetensors/, card.json, training.svg   the result
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from pydflash.checkpoint.files import Checkpoint, open_checkpoint
from pydflash.config import EngineConfig
from pydflash.draft.config import DraftConfig
from pydflash.errors import ConfigError
from pydflash.train import documents as docs
from pydflash.train.batches import collate
from pydflash.train.dense import ARCHITECTURES, DenseTarget
from pydflash.train.documents import Document
from pydflash.train.engine_check import engine_acceptance
from pydflash.train.export import target_card, trained_card, write_card, write_drafter
from pydflash.train.features import nbytes_of
from pydflash.train.harvest import Harvest, harvest
from pydflash.train.language import Language
from pydflash.train.network import DraftNet
from pydflash.train.plot import write_plot
from pydflash.train.prompts import Prompt
from pydflash.train.recipe import NetworkRecipe, TrainRecipe, draft_config
from pydflash.train.target import Target, stop_tokens
from pydflash.train.through_engine import EngineTarget
from pydflash.train.trainer import Trainer
from pydflash.train.warm import warm_start

Tell = Callable[[str, float, str], None]  # stage, share done (0 to 1), a few words


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train for whom, and where to put it."""

    target: Path
    out: Path
    prompts: Sequence[Prompt]
    harvest: Harvest = field(default_factory=Harvest)
    network: NetworkRecipe = field(default_factory=NetworkRecipe)
    recipe: TrainRecipe = field(default_factory=TrainRecipe)
    device: str = "auto"
    type: str = "Q8_0"
    dialects: tuple[str, ...] = ("dflash-draft",)
    resume: bool = False
    checked: int = 4  # held-out documents of each domain that the engine answers at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Files written; tokens a round of held-out documents, replayed before and after, and by the engine
    with trees of 16 nodes."""

    files: tuple[Path, ...]
    engine: dict[str, float]
    before: dict[str, dict[str, float]]
    after: dict[str, dict[str, float]]


def run(job: Job, tell: Tell = lambda stage, share, words: None) -> Result:
    """Generate (unless it was done), train (on from a checkpoint with `resume`), export."""
    device = pick_device(job.device)
    job.out.mkdir(parents=True, exist_ok=True)
    keep = job.out / "checkpoint.pt"
    if keep.exists() and not job.resume:
        raise ConfigError(f"{keep} is there already; add --resume to go on, or name another --out")
    checkpoint = open_checkpoint(job.target)
    language = Language.of(checkpoint)
    target = open_target(job.target, checkpoint, device)
    stop = stop_tokens(job.target, sorted(language.tokenizer.eog))
    documents = _documents(job, target, language, stop, tell)
    card = target_card(checkpoint, language.template.source, target.shape.layers)
    trainer = build_trainer(job, target, documents, mask_token(language), card)
    if job.resume and keep.exists():
        trainer.resume(keep)
    before = trainer.measure() if trainer.step == 0 else trainer.history.acceptance[0][1]

    def step(number: int, loss: float) -> bool:
        tell("training", number / job.recipe.steps, f"loss {loss:.3f}")
        return True

    trainer.run(keep=keep, tell=step)
    trainer.save(keep)
    after = trainer.measure(trees=(4, 8, 16, 32))
    trainer.use(trainer.average)
    tell("writing", 1.0, "")
    files = _write(job, trainer, checkpoint, after)
    engine: dict[str, float] = {}
    if "dflash-draft" in job.dialects:
        tell("checking in the engine", 0.0, "")
        engine = engine_acceptance(
            job.target, job.out / "drafter.gguf", trainer.held, each=job.checked, budget=16
        )
    card_file = whole_card(job, trainer.net.config, before, after, engine)
    files += (write_card(job.out / "card.json", card_file),)
    files += (write_plot(job.out / "training.svg", trainer.history),)
    return Result(files=files, engine=engine, before=before, after=after)


def pick_device(name: str) -> torch.device:
    """auto: the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise ConfigError(f"--device {name} is not here; use auto or cpu")
    return torch.device(name)


def open_target(path: Path, checkpoint: Checkpoint, device: torch.device) -> Target:
    """The fast form for dense llama and qwen3 files, the engine for every other architecture."""
    if checkpoint.meta.arch in ARCHITECTURES:
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        return DenseTarget(checkpoint, device, dtype)
    if device.type != "cpu":
        raise ConfigError(f"{checkpoint.meta.arch} targets train on the CPU only; add --device cpu")
    return EngineTarget(path, EngineConfig())


def mask_token(language: Language) -> int:
    """The last special token that no text or turn uses: a drafter's mask needs an embedding, no meaning."""
    tokenizer, source = language.tokenizer, language.template.source
    used = {*tokenizer.eog, tokenizer.bos, tokenizer.eos}
    for token in range(tokenizer.vocab_size - 1, -1, -1):
        free = tokenizer.is_special(token) and token not in used
        if free and tokenizer.token_text(token) not in source:
            return token
    return min(tokenizer.eog)  # it stands in prompts, but behind an anchor it means nothing


def build_trainer(
    job: Job,
    target: Target,
    documents: Sequence[Document],
    mask: int,
    card: dict[str, str],
) -> Trainer:
    """Split, choose the vocabulary, make the network and warm it."""
    recipe, shape = job.recipe, target.shape
    train, held = docs.split(documents, recipe.held_out, recipe.seed)
    if not train or not held:
        raise ConfigError(
            f"{len(documents)} documents are too few to train and measure; raise --prompts"
        )
    wanted = min(job.network.draft_vocab, shape.vocab)
    network = replace(job.network, draft_vocab=wanted if wanted < shape.vocab else 0)
    ids = None
    if network.draft_vocab:
        always = [token for token in stop_ids(train) if token < shape.vocab]
        chosen = docs.frequent_tokens(train, shape.vocab, network.draft_vocab, always)
        ids = torch.from_numpy(chosen).long()
    config = draft_config(
        shape, network, network.mask_token if network.mask_token >= 0 else mask, card
    )
    dtype = torch.bfloat16 if target.device.type == "cuda" else torch.float32
    net = DraftNet(
        config,
        target.embedding(),
        target.head(),
        ids,
        dtype=dtype,
        positions=recipe.max_len,
        seed=recipe.seed,
    )
    longest = sorted(train[:64], key=lambda d: len(d.tokens))[-16:]
    sample = collate(longest, recipe.max_len).tokens.to(target.device)
    net.scale_features(target.features(sample, config.target_layers).clone())
    if network.warm_start and isinstance(target, DenseTarget):
        warm_start(net, target, sample)
    trainer = Trainer(net, target, train, held, recipe)
    room = nbytes_of(train, recipe.max_len, len(config.target_layers) * shape.hidden)
    if target.device.type == "cuda" and room < 0.6 * torch.cuda.mem_get_info()[0]:
        trainer.features.keep(train, tokens=4 * recipe.tokens, max_len=recipe.max_len)
    return trainer


def stop_ids(documents: Sequence[Document]) -> set[int]:
    """The tokens that answers end with."""
    return {int(d.tokens[-1]) for d in documents}


def _documents(
    job: Job, target: Target, language: Language, stop: frozenset[int], tell: Tell
) -> list[Document]:
    path = job.out / "documents.npz"
    if path.exists():
        return docs.load(path)
    expected = (len(job.prompts) + job.harvest.own) * job.harvest.max_new / 2
    made = 0

    def progress(what: str, tokens: int) -> None:
        nonlocal made
        made += tokens
        tell("generating", min(made / max(expected, 1), 1.0), f"{what}, {made:,} tokens")

    documents = harvest(target, language, stop, job.prompts, job.harvest, progress)
    docs.save(path, documents)
    return documents


def _write(
    job: Job,
    trainer: Trainer,
    checkpoint: Checkpoint,
    after: dict[str, dict[str, float]],
) -> tuple[Path, ...]:
    net, config = trainer.net, trainer.net.config
    tokens = sum(len(d.answer) for d in trainer.documents)
    config = replace(
        config,
        card=config.card
        | trained_card(
            documents=len(trainer.documents), tokens=tokens, steps=trainer.step, acceptance=after
        ),
    )
    tensors = net.export()
    files = []
    for dialect in job.dialects:
        name = {"safetensors": "safetensors", "dflash": "drafter-llama.cpp.gguf"}.get(
            dialect, "drafter.gguf"
        )
        files.append(
            write_drafter(
                config,
                tensors,
                job.out / name,
                dialect=dialect,
                type=job.type,
                target=checkpoint,
                head=net.head.float().cpu(),
            )
        )
    return tuple(files)


def whole_card(
    job: Job,
    config: DraftConfig,
    before: dict[str, dict[str, float]],
    after: dict[str, dict[str, float]],
    engine: dict[str, float],
) -> dict[str, Any]:
    """Everything a reader may ask of a drafter."""
    return {
        **config.card,
        "target_layers_read": list(config.target_layers),
        "network": asdict(job.network),
        "recipe": asdict(job.recipe),
        "harvest": asdict(job.harvest),
        "tokens_a_round": {"untrained": before, "trained": after, "engine, tree 16": engine},
    }
