"""KvStore: the paged keys and values of every layer. K and V are typed apart.

Layout of a page: see `kernels.ops.PagedKV`. The store holds tensors; who owns which page is for
`state.pages` and `state.sequence`.
"""

from collections.abc import Sequence

import torch

from pydflash.errors import ConfigError
from pydflash.kernels.ops import PAGE_SIZE, OpTable, PagedKV
from pydflash.kernels.record import Captures, Recorder
from pydflash.kernels.upload import apart, joined, upload
from pydflash.state.base import PagedKVSpec, StateSpec, paged_specs

Tensor = torch.Tensor

_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "q8_0": torch.int8,
}


def page_bytes(specs: Sequence[StateSpec], k_format: str, v_format: str) -> int:
    """Bytes of one page over all attention layers."""
    return sum(
        _bytes(spec.kv_heads * spec.head_dim * PAGE_SIZE, form)
        for spec in paged_specs(specs)
        for form in (k_format, v_format)
    )


class KvStore:
    """Pages for every attention layer, allocated once. Specs of other kinds are passed over."""

    def __init__(
        self,
        specs: Sequence[StateSpec],
        num_pages: int,
        k_format: str,
        v_format: str,
        ops: OpTable,
        *,
        scratch: bool = False,
        record: Recorder | None = None,
    ) -> None:
        """`scratch`: have one page more, which nobody owns and padding may write. With it, `record` captures
        what commits do (`state.moves`)."""
        paged = paged_specs(specs)
        for spec in paged:
            for form in (k_format, v_format):
                if form == "q8_0" and spec.head_dim % 32:
                    raise ConfigError(
                        f"a q8_0 cache needs head dimensions divisible by 32, this model has "
                        f"{spec.head_dim}; use --cache-type-k f16 --cache-type-v f16"
                    )
        self.num_pages = num_pages
        self.ops = ops
        self.scratch = num_pages if scratch else None
        whole = num_pages + scratch
        self.nbytes = whole * page_bytes(specs, k_format, v_format)
        self.layers = [_layer(s, whole, k_format, v_format, ops.device) for s in paged]
        if scratch:
            for tensor in self._tensors():
                tensor[num_pages].zero_()
        self.commits = Captures(record) if record is not None and scratch else None
        self.layout = f"kv:{PAGE_SIZE}:{k_format}:{v_format}:" + ",".join(
            f"{s.kv_heads}x{s.head_dim}" for s in paged
        )

    def copy(self, src: Sequence[int], dst: Sequence[int]) -> None:
        """Copy stored positions between physical places in every layer; reads precede writes."""
        if src:
            places = upload(joined((src, dst)), self.ops.device)
            self.move(*apart(places, (len(src), len(dst))))

    def move(self, src: Tensor, dst: Tensor) -> None:
        """The same, of places int32 [n] on the device."""
        self.ops.copy_slots(self.layers, src, dst)

    def export(self, pages: Sequence[int]) -> list[Tensor]:
        """Copies of whole pages on the host, every tensor of every layer in order."""
        at = torch.tensor(pages, dtype=torch.long, device=self.ops.device)
        return [t[at].cpu() for t in self._tensors()]

    def import_(self, pages: Sequence[int], blob: Sequence[Tensor]) -> None:
        """Write what `export` gave into these pages."""
        at = torch.tensor(pages, dtype=torch.long, device=self.ops.device)
        for mine, theirs in zip(self._tensors(), blob, strict=True):
            mine[at] = theirs.to(mine.device)

    def _tensors(self) -> list[Tensor]:
        return [
            t
            for layer in self.layers
            for t in (layer.k, layer.v, layer.k_scale, layer.v_scale)
            if t is not None
        ]


def _layer(
    spec: PagedKVSpec, pages: int, k_format: str, v_format: str, device: torch.device
) -> PagedKV:
    G, D = spec.kv_heads, spec.head_dim

    def empty(*shape: int, form: str) -> Tensor:
        return torch.empty(pages, *shape, dtype=_DTYPES[form], device=device)

    return PagedKV(
        k=empty(G, D, PAGE_SIZE, form=k_format),
        v=empty(G, PAGE_SIZE, D, form=v_format),
        k_format=k_format,
        v_format=v_format,
        k_scale=empty(G, D // 32, PAGE_SIZE, form="f16") if k_format == "q8_0" else None,
        v_scale=empty(G, PAGE_SIZE, D // 32, form="f16") if v_format == "q8_0" else None,
    )


def _bytes(elements: int, form: str) -> int:
    return elements * 34 // 32 if form == "q8_0" else elements * _DTYPES[form].itemsize
