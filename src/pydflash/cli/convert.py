"""`pydflash convert`: a drafter from one container to another."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def convert(
    drafter: Annotated[Path, Parameter(help="a GGUF or safetensors file, or a directory")],
    dest: Annotated[Path, Parameter(help="a .gguf file, or a directory for safetensors")],
    /,
    *,
    to: Annotated[
        str | None,
        Parameter(
            help="safetensors (z-lab's form), gguf, llama.cpp, or one of the seeds' architectures; "
            "by default what DEST's name says"
        ),
    ] = None,
    type: Annotated[
        str | None, Parameter(help="format of the matrices, as in quantize; default as they are")
    ] = None,
    swa: Annotated[
        int | None,
        Parameter(help="note that all layers but the last see this many positions only"),
    ] = None,
    target: Annotated[
        Path | None, Parameter(help="the target's GGUF file, whose tokenizer llama.cpp needs")
    ] = None,
    force: Annotated[bool, Parameter(help="replace what exists", negative="")] = False,
    threads: Annotated[int | None, Parameter(help="cores to use, default all")] = None,
) -> None:
    """Convert a DFlash drafter between safetensors, GGUF and llama.cpp's GGUF."""
    from pydflash.draft.convert import convert_drafter
    from pydflash.errors import ConfigError

    if threads is not None and threads < 1:
        raise ConfigError(f"--threads {threads} leaves nobody to do the work; give 1 or more")
    notes = convert_drafter(
        drafter,
        dest,
        to=to,
        type=type,
        window=swa,
        target=target,
        force=force,
        threads=threads,
    )
    for note in notes:
        print(f"note: {note}")
    print(f"{dest}: {nbytes(dest) / 1e6:.1f} MB from {nbytes(drafter) / 1e6:.1f} MB")


def nbytes(path: Path) -> int:
    """Bytes of a file, or of the weights in a directory."""
    path = path.expanduser()
    files = path.glob("*.safetensors") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)
