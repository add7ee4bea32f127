"""Binder: hands a checkpoint's tensors to a model, strictly.

Invariant: every tensor of the file is bound once or explicitly ignored, and has the shape the model
states; anything else is an error at load that names the tensor.
"""

import fnmatch
from collections.abc import Callable, Iterable

import torch

from pydflash.checkpoint.files import Checkpoint
from pydflash.errors import CheckpointError, UnsupportedError
from pydflash.kernels.ops import OpTable, Weight
from pydflash.kernels.ref.quant import dequantize
from pydflash.quant.tensor import QuantTensor

Tensor = torch.Tensor


class Binder:
    """Reads tensors by name for one device and remembers which were taken."""

    def __init__(
        self, checkpoint: Checkpoint, ops: OpTable, progress: Callable[[int], None] | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.ops = ops
        self.nbytes = 0
        self._taken: set[str] = set()
        self._progress = progress

    def has(self, name: str) -> bool:
        return name in self.checkpoint.tensors

    def weight(
        self, parts: dict[str, int], cols: int, *, bias: bool = False, table: bool = False
    ) -> Weight:
        """A product operand merged along rows from named parts {name: rows}, each [rows, cols].

        With `bias`, each part's `.bias` is added when the file has one. A `table` is of one part and only
        looked up in; the ops may have another place for it.
        """
        tensors = [self._take(name, (rows, cols)) for name, rows in parts.items()]
        scales = [self._scale(name, 1) for name in parts]
        weight = self._prepare(tensors, scales, 0, self._bias(parts) if bias else None, table)
        self._release(parts)
        return weight

    def stack(self, parts: dict[str, int], cols: int, count: int) -> list[Weight]:
        """`count` product operands from named stacks [count, rows, cols], merged as `weight` does."""
        stacks = [self._take(name, (count, rows, cols)) for name, rows in parts.items()]
        scales = [self._scale(name, count) for name in parts]
        weights = [
            self._prepare([_member(t, i) for t in stacks], scales, i, None) for i in range(count)
        ]
        self._release(parts)
        return weights

    def vector(self, name: str, size: int) -> Tensor:
        """A small tensor as f32 [size] on the device."""
        tensor = self._take(name, (size,))
        self.nbytes += 4 * size
        return dequantize(tensor).to(self.ops.device).clone()

    def matrix(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A small tensor of any rank as f32 on the device."""
        tensor = self._take(name, shape)
        values = dequantize(tensor).to(self.ops.device).clone()
        self.nbytes += 4 * values.numel()
        return values

    def vector_or_none(self, name: str, size: int) -> Tensor | None:
        return self.vector(name, size) if self.has(name) else None

    def ignore(self, patterns: Iterable[str]) -> None:
        """Tensors that the model knows and leaves out."""
        for pattern in patterns:
            self._taken.update(fnmatch.filter(self.checkpoint.tensors, pattern))

    def finish(self) -> None:
        """Refuse a file with tensors that nothing asked for."""
        left = sorted(set(self.checkpoint.tensors) - self._taken)
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise CheckpointError(
                f"{self.checkpoint.path.name} has tensors this architecture does not use: "
                f"{', '.join(left[:3])}{more}; the file may need a newer pydflash"
            )

    def _prepare(
        self,
        tensors: list[QuantTensor],
        scales: list[Tensor | None],
        index: int,
        bias: Tensor | None,
        table: bool = False,
    ) -> Weight:
        for t in tensors:
            if t.format.name not in self.ops.formats:
                raise UnsupportedError(
                    f"{t.name} is {t.format.name}; the {self.ops.name} backend has no kernel for it; "
                    "run with --ops ref or requantise the file with `pydflash quantize`"
                )
        if table and self.ops.host_table is not None:
            weight = self.ops.host_table(tensors[0])
        else:
            weight = self.ops.prepare(tensors, bias)
        if any(s is not None for s in scales):
            if not self.ops.scales:
                raise UnsupportedError(
                    f"{tensors[0].name} has a scale beside it; the {self.ops.name} backend cannot "
                    "apply it: run with --ops ref"
                )
            weight.scale = torch.cat(
                [
                    torch.ones(t.num_rows) if s is None else s[index].repeat(t.num_rows)
                    for t, s in zip(tensors, scales, strict=True)
                ]
            ).to(self.ops.device)
        self.nbytes += weight.nbytes
        return weight

    def _scale(self, name: str, count: int) -> Tensor | None:
        """The numbers beside a matrix (or a stack of `count`) that multiply its products (NVFP4 files)."""
        for scale in (name.removesuffix(".weight") + ".scale", name + ".scale"):
            if self.has(scale):
                values = dequantize(self._take(scale, (self.checkpoint.info(scale).shape)))
                if values.numel() not in (1, count):
                    raise CheckpointError(
                        f"{scale} has {values.numel()} numbers for {count} matrices; "
                        "the file is inconsistent: download or convert it again"
                    )
                self.nbytes += 4 * values.numel()
                return values.flatten().expand(count)
        return None

    def _release(self, names: Iterable[str]) -> None:
        if not self.ops.borrows:
            for name in names:
                self.checkpoint.release(name)

    def _bias(self, parts: dict[str, int]) -> Tensor | None:
        found = {
            name: self.vector_or_none(name.removesuffix(".weight") + ".bias", rows)
            for name, rows in parts.items()
        }
        if all(b is None for b in found.values()):
            return None
        zeros = {name: torch.zeros(rows, device=self.ops.device) for name, rows in parts.items()}
        return torch.cat([zeros[n] if b is None else b for n, b in found.items()])

    def _take(self, name: str, shape: tuple[int, ...]) -> QuantTensor:
        info = self.checkpoint.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{self.checkpoint.path.name} has no tensor {name}; the file is incomplete: "
                "download or convert it again"
            )
        if tuple(info.shape) != shape:
            raise CheckpointError(
                f"{name} is {list(info.shape)}, the metadata implies {list(shape)}; "
                "the file is inconsistent: download or convert it again"
            )
        self._taken.add(name)
        if self._progress is not None:
            self._progress(info.nbytes)
        return self.checkpoint.tensor(name)


def _member(stack: QuantTensor, index: int) -> QuantTensor:
    return QuantTensor(
        name=f"{stack.name}[{index}]",
        data=stack.data[index],
        format=stack.format,
        shape=stack.shape[1:],
    )


def layer_of(name: str) -> int:
    """The number in `blk.N.`, -1 for other names."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" and len(parts) > 2 and parts[1].isdecimal() else -1


def block_count(checkpoint: Checkpoint) -> int:
    """`{arch}.block_count`, which the file's tensors must bear out (a forged one would exhaust memory)."""
    stated = checkpoint.meta.int("{arch}.block_count")
    present = {name.split(".")[1] for name in checkpoint.tensors if name.startswith("blk.")}
    if not 0 < stated <= len(present):
        raise CheckpointError(
            f"{checkpoint.path.name} states a block_count of {stated} and has tensors of "
            f"{len(present)} blocks; download or convert the file again"
        )
    return stated


def vocab_rows(checkpoint: Checkpoint) -> int:
    """Rows of the embedding: the vocabulary this model really has."""
    info = checkpoint.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise CheckpointError(
            f"{checkpoint.path.name} has no token_embd.weight matrix; "
            "download or convert the file again"
        )
    return info.shape[0]
