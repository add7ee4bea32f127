"""`pydflash devices`: what this machine offers and which kernels it would get."""

import json
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from pydflash import device
from pydflash.catalog.cache import megabytes


def devices(
    *,
    ops: Annotated[
        bool, Parameter(help="say of each kernel set whether it serves, or why not", negative="")
    ] = False,
    as_json: Annotated[
        bool, Parameter(name="--json", help="print one JSON object", negative="")
    ] = False,
) -> None:
    """List processors and GPUs with their memory, features and kernels."""
    found = device.devices()
    kernels = {info.name: _kernels(info.name) for info in found}
    if as_json:
        rows = [asdict(info) | {"kernels": kernels[info.name]} for info in found]
        print(json.dumps({"threads": device.default_threads(), "devices": rows}, indent=1))
        return
    for info in found:
        print(f"{info.name}: {info.description}")
        print(f"  memory   {megabytes(info.free_bytes)} free of {megabytes(info.total_bytes)}")
        if info.cores:
            print(f"  cores    {info.cores} physical, for this process")
        if info.features:
            print(f"  features {' '.join(info.features)}")
        if info.capability:
            print(f"  compute  {info.capability}")
        lines = kernels[info.name]
        served = not info.capability or lines[0].endswith(": chosen")  # a GPU, by Triton's kernels
        shown = (
            [line for line in lines if line.endswith(": chosen")] if served and not ops else lines
        )
        for label, line in zip(["kernels", *[""] * len(shown)], shown, strict=False):
            print(f"  {label:8} {line}")


def _kernels(name: str) -> list[str]:
    import torch

    from pydflash.kernels.select import explain

    return explain(torch.device(device.torch_name(name)))
