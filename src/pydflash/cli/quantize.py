"""`pydflash quantize`: rewrite a model file, or a drafter, in another format."""

from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def quantize(
    source: Annotated[Path, Parameter(help="the GGUF file to read, or any drafter")],
    dest: Annotated[Path, Parameter(help="the GGUF file to write")],
    /,
    *,
    type: Annotated[
        str,
        Parameter(
            help="F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K Q5_1 Q5_0 Q4_K_M Q4_K Q4_1 Q4_0 Q3_K Q2_K; "
            "an M mix gives the most sensitive matrices more bits"
        ),
    ],
    swa: Annotated[
        int | None,
        Parameter(help="of a drafter: note that all layers but the last see this many positions"),
    ] = None,
    force: Annotated[bool, Parameter(help="replace an existing file", negative="")] = False,
    threads: Annotated[int | None, Parameter(help="cores to use, default all")] = None,
    quiet: Annotated[bool, Parameter(help="no progress bar", negative="")] = False,
) -> None:
    """Rewrite a model file in another format and print what became of it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from pydflash.checkpoint.files import TensorInfo, open_checkpoint
    from pydflash.checkpoint.requantize import quantize_file
    from pydflash.cli.convert import nbytes
    from pydflash.draft.convert import convert_drafter
    from pydflash.draft.files import is_drafter
    from pydflash.errors import ConfigError
    from pydflash.quant.formats import QuantFormat

    if threads is not None and threads < 1:
        raise ConfigError(f"--threads {threads} leaves nobody to do the work; give 1 or more")
    with open_checkpoint(source) as checkpoint:
        total, before = len(checkpoint.tensors), checkpoint.nbytes
        drafter = is_drafter(checkpoint)
    if swa is not None and not drafter:
        raise ConfigError(f"--swa is for drafters, and {source.name} is none")
    made: Counter[str] = Counter()
    lossy = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet)
    with bars:
        task = bars.add_task("quantize", total=total)

        def report(info: TensorInfo, target: QuantFormat) -> None:
            nonlocal lossy
            made[target.name] += 1
            lossy += target is not info.format and not info.format.is_dense
            bars.update(task, advance=1, description=f"{info.name} to {target.name}")

        if drafter:
            convert_drafter(
                source,
                dest,
                type=type,
                window=swa,
                progress=report,
                force=force,
                threads=threads,
            )
        else:
            quantize_file(source, dest, type, report, force=force, threads=threads)
    after = nbytes(dest)
    counts = ", ".join(f"{count} {name}" for name, count in made.most_common())
    print(f"{dest}: {after / 1e6:.1f} MB from {before / 1e6:.1f} MB; {counts}")
    if lossy:
        print(
            f"{lossy} tensors of {source.name} were quantised already: "
            "what that lost is not won back; start from F16 or BF16 where you can"
        )
