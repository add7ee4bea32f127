"""`pydflash train`: make a drafter for a model, on text the model writes itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from pydflash import catalog

if TYPE_CHECKING:
    from pydflash.train.pipeline import Tell
    from pydflash.train.prompts import Prompt


def train(
    target: Annotated[str, Parameter(help="catalogue name, path, or hf:owner/repo/file")],
    /,
    *,
    out: Annotated[Path, Parameter(help="directory for the drafter and what its making leaves")],
    data: Annotated[
        list[Path] | None,
        Parameter(
            help="prompts: .jsonl (messages, prompt, question, instruction or text a line) or text files "
            "of paragraphs; may be repeated",
            negative="",
        ),
    ] = None,
    prompts: Annotated[
        int, Parameter(help="built-in prompts: code, sums, everyday requests")
    ] = 1000,
    own: Annotated[int, Parameter(help="prompts that the model thinks of itself")] = 1000,
    max_new: Annotated[int, Parameter(help="tokens of an answer")] = 384,
    sampled: Annotated[
        float, Parameter(help="share of answers drawn at 0.7, the rest greedy")
    ] = 0.33,
    layers: Annotated[int, Parameter(help="layers of the drafter")] = 2,
    ffn: Annotated[int, Parameter(help="width of its feed-forward; 0: the target's")] = 0,
    taps: Annotated[
        str, Parameter(help="target layers it reads, with commas, from 0; empty: chosen")
    ] = "",
    block_size: Annotated[int, Parameter(help="tokens of a block, the anchor included")] = 16,
    draft_vocab: Annotated[int, Parameter(help="tokens it can draft; 0: all")] = 12288,
    selector_rank: Annotated[int, Parameter(help="rank of the pairwise selector; 0: none")] = 64,
    cold: Annotated[
        bool, Parameter(help="begin with random weights, not the target's last layers", negative="")
    ] = False,
    steps: Annotated[int, Parameter(help="training steps")] = 2000,
    tokens: Annotated[int, Parameter(help="document tokens of a step")] = 8192,
    blocks: Annotated[int, Parameter(help="anchors of a step")] = 1024,
    lr: Annotated[float, Parameter(help="peak learning rate")] = 1e-3,
    loss: Annotated[str, Parameter(help="weights of slots: dpace or decay")] = "dpace",
    evaluate_every: Annotated[
        int, Parameter(help="steps between measurements and checkpoints")
    ] = 500,
    held_out: Annotated[int, Parameter(help="documents of a domain kept for measuring")] = 24,
    seed: Annotated[int, Parameter(help="of text, order, anchors and weights")] = 0,
    device: Annotated[str, Parameter(help="auto, cpu or cuda")] = "auto",
    type: Annotated[str, Parameter(help="format of the matrices, as in quantize")] = "Q8_0",
    dialects: Annotated[
        str, Parameter(help="with commas: dflash-draft (ours), dflash (llama.cpp), safetensors")
    ] = "dflash-draft",
    resume: Annotated[bool, Parameter(help="go on from OUT's checkpoint", negative="")] = False,
    quiet: Annotated[bool, Parameter(help="no progress bar", negative="")] = False,
) -> None:
    """Train a DFlash drafter for a model: text by the model itself, then the drafter, then files."""
    from pydflash.train.harvest import Harvest
    from pydflash.train.pipeline import Job, run
    from pydflash.train.recipe import NetworkRecipe, TrainRecipe

    job = Job(
        target=catalog.resolve(target),
        out=out.expanduser(),
        prompts=_prompts(data, prompts, seed),
        harvest=Harvest(own=own, max_new=max_new, sampled=sampled, seed=seed),
        network=NetworkRecipe(
            layers=layers,
            ffn=ffn,
            taps=_numbers(taps),
            block_size=block_size,
            draft_vocab=draft_vocab,
            selector_rank=selector_rank,
            warm_start=not cold,
        ),
        recipe=TrainRecipe(
            steps=steps,
            tokens=tokens,
            blocks=blocks,
            lr=lr,
            loss=loss,
            evaluate_every=evaluate_every,
            held_out=held_out,
            seed=seed,
        ),
        device=device,
        type=type,
        dialects=tuple(word.strip() for word in dialects.split(",") if word.strip()),
        resume=resume,
    )
    with _bars(quiet=quiet) as tell:
        result = run(job, tell)
    _print_table(result.before, result.after)
    if result.engine:
        domains = ", ".join(f"{name} {length:.2f}" for name, length in result.engine.items())
        print(f"in the engine, trees of 16 nodes: {domains}")
    for path in result.files:
        print(path)


def _prompts(data: "list[Path] | None", count: int, seed: int) -> "list[Prompt]":
    from pydflash.errors import ConfigError
    from pydflash.train.prompts import built_in, from_file

    missing = next((p for p in data or () if not p.expanduser().is_file()), None)
    if missing is not None:
        raise ConfigError(f"--data {missing} is not a file")
    found = [prompt for path in data or () for prompt in from_file(path.expanduser())]
    return [*found, *built_in(count, seed)]


def _numbers(text: str) -> tuple[int, ...]:
    from pydflash.errors import ConfigError

    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise ConfigError(f"--taps {text} must be layer numbers with commas between") from None


class _bars:
    """One progress bar, renamed stage by stage."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
        )
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=quiet)
        self._stage = ""

    def __enter__(self) -> "Tell":
        self._progress.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _tell(self, stage: str, share: float, words: str) -> None:
        if stage != self._stage:
            for task in list(self._progress.task_ids):
                self._progress.remove_task(task)
            self._progress.add_task(stage, total=1.0, words="")
            self._stage = stage
        self._progress.update(self._progress.task_ids[-1], completed=share, words=words)


def _print_table(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    ways = list(after["all"])
    table = Table("held out", *ways, title="tokens a round (untrained chain in brackets)")
    for domain, lengths in after.items():
        first = before.get(domain, {}).get("chain", 1.0)
        cells = [f"{lengths[way]:.2f}" for way in ways]
        cells[0] += f" ({first:.2f})"
        table.add_row(domain, *cells)
    Console().print(table)
