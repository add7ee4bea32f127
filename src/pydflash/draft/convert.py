"""convert_drafter: from any container to any other, in the same or another format."""

from dataclasses import replace
from pathlib import Path

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.requantize import Progress, workers
from pydflash.draft.config import DraftConfig
from pydflash.draft.files import DraftFile, open_drafter
from pydflash.draft.for_llama_cpp import pick_rows
from pydflash.draft.read_gguf import LLAMA_CPP, SEEDS
from pydflash.draft.write import token_ids, write_gguf, write_safetensors
from pydflash.errors import ConfigError
from pydflash.quant.tensor import QuantTensor

SAFETENSORS = "safetensors"
WORDS = {"gguf": "dflash-draft", "llama.cpp": LLAMA_CPP}
TO = (SAFETENSORS, *WORDS, *SEEDS)


def convert_drafter(
    source: str | Path,
    dest: str | Path,
    *,
    to: str | None = None,
    type: str | None = None,
    window: int | None = None,
    target: str | Path | None = None,
    progress: Progress | None = None,
    force: bool = False,
    threads: int | None = None,
) -> tuple[str, ...]:
    """Write the drafter `source` to `dest`; return what its reader had to remark.

    `to` is one of `TO`; without it a GGUF file keeps its dialect if `dest` ends in .gguf, and anything else
    becomes a safetensors directory. `type` as in `quantize_file`, without it formats stay. `window` makes
    all layers but the last slide. llama.cpp's dialect takes its tokenizer from `target`, a GGUF file,
    unless the source has one. Raises ConfigError, CheckpointError, CapacityError.
    """
    source, dest = Path(source).expanduser(), Path(dest).expanduser()
    _check_paths(source, dest, force)
    with open_drafter(source) as drafter, workers(threads) as pool:
        kind = _kind(to, drafter, dest)
        config = drafter.config if window is None else slide(drafter.config, window)
        if kind == SAFETENSORS:
            if dest.is_file():
                raise ConfigError(f"{dest} is a file; name a directory for safetensors")
            write_safetensors(config, drafter.tensors(), dest, type=type)
            return drafter.notes
        if dest.is_dir():
            raise ConfigError(
                f"{dest} is a directory; name a file, for instance {dest / 'draft.gguf'}"
            )
        tensors = drafter.tensors()
        if kind == LLAMA_CPP and target is not None:
            tensors |= _lent_head(drafter, target)
        write_gguf(
            config,
            tensors,
            dest,
            dialect=kind,
            type=type,
            tokenizer=_tokenizer(drafter, target) if kind == LLAMA_CPP else None,
            progress=progress,
            pool=pool,
        )
        return drafter.notes


def slide(config: DraftConfig, window: int) -> DraftConfig:
    """All layers but the last see `window` positions only, and are causal in the block, as such layers are.

    For files whose makers forgot to say so: the network must have been trained that way.
    """
    if config.layers < 2 or window < config.block_size:
        raise ConfigError(
            f"a window of {window} needs at least two layers and a block of {config.block_size} "
            f"or fewer positions; this drafter has {config.layers}"
        )
    first = config.layers - 1
    causal = (*((True,) * first), config.causal[-1])
    return replace(config, windows=(*((window,) * first), None), causal=causal)


def _kind(to: str | None, drafter: DraftFile, dest: Path) -> str:
    if to is not None and to not in TO:
        raise ConfigError(f"{to} is no form of a drafter; use {', '.join(TO)}")
    if to is not None:
        return WORDS.get(to, to)
    if dest.suffix != ".gguf":
        return SAFETENSORS
    return drafter.architecture or WORDS["gguf"]


def _tokenizer(drafter: DraftFile, target: str | Path | None) -> Meta | None:
    if target is not None:
        with open_checkpoint(target) as checkpoint:
            if checkpoint.kind != "gguf":
                raise ConfigError(f"{target} is not a GGUF file; name the target's GGUF file")
            # The file stays mapped as long as its metadata is in use.
            return checkpoint.meta
    return drafter.checkpoint.meta if drafter.container == "llama.cpp" else None


def _lent_head(drafter: DraftFile, target: str | Path) -> dict[str, QuantTensor]:
    """The target's rows of the output for a reduced vocabulary that has none of its own."""
    if drafter.config.draft_vocab is None or drafter.find("output.weight") is not None:
        return {}
    ids = token_ids(drafter.checkpoint.tensor("d2t"))
    with open_checkpoint(target) as checkpoint:
        name = "output.weight" if "output.weight" in checkpoint.tensors else "token_embd.weight"
        head = checkpoint.tensor(name)
        if len(head.shape) != 2 or head.shape != (drafter.config.vocab, drafter.config.hidden):
            raise ConfigError(
                f"{target}: {name} is {list(head.shape)}, the drafter's target has "
                f"{[drafter.config.vocab, drafter.config.hidden]}; name the GGUF file of its target"
            )
        return {"output.weight": replace(pick_rows(head, ids), name="output.weight")}


def _check_paths(source: Path, dest: Path, force: bool) -> None:
    if dest.exists() and source.exists() and dest.samefile(source):
        raise ConfigError(f"{dest} is the drafter to read; give the result another name")
    if dest.exists() and not force and not (dest.is_dir() and not any(dest.iterdir())):
        raise ConfigError(f"{dest} exists; remove it, or replace it with --force")
    if not dest.parent.is_dir():
        raise ConfigError(f"{dest.parent} is not a directory; create it first")
