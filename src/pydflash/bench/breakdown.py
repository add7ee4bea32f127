"""Breakdown: where the device's time goes in a step or a round, by kind of kernel, beside each kind's floor.

Kernels are told apart by name; those within the watched stretch of drafting count as the drafter's.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pydflash.kernels.upload import wait

DRAFT = "pydflash draft"
# The first that a name contains. Our own kernels, then torch's and the vendor's.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("delta", ("delta_", "prefill_inputs", "prefill_solve", "prefill_walk", "prefill_conv")),
    ("attention", ("attention", "rope_store", "combine_kernel", "flash", "fmha")),
    (
        "products",
        (
            "product_kernel",
            "matmul_kernel",
            "decode_kernel",
            "half_kernel",
            "expert_kernel",
            "route_kernel",
            "group_kernel",
            "gemm",
            "gemv",
            "cutlass",
            "nvjet",
            "cublas",
        ),
    ),
    ("norms and sums", ("norm_kernel", "gated_kernel", "finish_kernel", "embed_kernel")),
    ("sampling", ("scan_kernel", "pick_kernel", "argmax", "topk", "sort", "softmax")),
    ("tree", ("order_kernel", "grow_kernel", "plant_kernel", "calibrate_kernel")),
    (
        "copies",
        ("memcpy", "memset", "copy", "fill", "index", "cat", "elementwise", "gather", "scatter"),
    ),
)
OTHER = "other"
GAPS = "gaps"


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel or copy on the device: when it began and how long it ran, in microseconds."""

    name: str
    begin: float
    us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A kind's part of one repeat: microseconds, launches, and the floor where one is known."""

    kind: str
    us: float
    launches: float
    floor_us: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def kind_of(name: str) -> str:
    """The kind of a kernel."""
    low = name.lower()
    for kind, words in _KINDS:
        if any(word in low for word in words):
            return kind
    return OTHER


def profiled(
    work: Callable[[], object], repeats: int, device: torch.device
) -> tuple[list[Launch], list[tuple[float, float]]]:
    """Launches of `repeats` of the work, and the stretches in which it drafted."""
    from torch.profiler import ProfilerActivity, profile

    is_gpu = device.type == "cuda"
    seen = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    work()
    wait(device)
    with profile(activities=seen) as profiler:
        for _ in range(repeats):
            work()
        wait(device)
    launches, drafts = [], []
    for event in profiler.events() or ():
        on_device = event.device_type.name != "CPU"
        span = event.time_range
        if event.name == DRAFT:
            if not on_device:
                drafts.append((span.start, span.end))
        elif getattr(event, "is_user_annotation", False):
            continue  # stretches that others have marked
        elif on_device if is_gpu else not event.cpu_children:
            launches.append(Launch(event.name, span.start, span.end - span.start))
    return launches, drafts


def lines(
    launches: Iterable[Launch],
    repeats: int,
    wall_us: float,
    *,
    floors_us: Mapping[str, float] | None = None,
    drafts: Sequence[tuple[float, float]] = (),
) -> list[Line]:
    """One line a kind, the longest first, then what of `wall_us` no kernel fills. Sums are of one repeat."""
    floors = floors_us or {}
    spent: dict[str, tuple[float, int]] = {}
    for launch in launches:
        kind = kind_of(launch.name)
        if any(begin <= launch.begin < end for begin, end in drafts):
            kind = f"drafter: {kind}"
        us, count = spent.get(kind, (0.0, 0))
        spent[kind] = (us + launch.us, count + 1)
    found = [
        Line(
            kind=kind,
            us=us / repeats,
            launches=count / repeats,
            floor_us=floors.get(kind),
        )
        for kind, (us, count) in sorted(spent.items(), key=lambda item: -item[1][0])
    ]
    busy = sum(line.us for line in found)
    return [*found, Line(kind=GAPS, us=max(wall_us - busy, 0.0), launches=0.0)]


def names(launches: Iterable[Launch], repeats: int, most: int = 40) -> list[dict[str, Any]]:
    """The kernels that took longest, by name: microseconds and launches of one repeat."""
    spent: dict[str, tuple[float, int]] = {}
    for launch in launches:
        us, count = spent.get(launch.name, (0.0, 0))
        spent[launch.name] = (us + launch.us, count + 1)
    longest = sorted(spent.items(), key=lambda item: -item[1][0])[:most]
    return [
        {"name": name[:120], "kind": kind_of(name), "us": us / repeats, "launches": count / repeats}
        for name, (us, count) in longest
    ]
