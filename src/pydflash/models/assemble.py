"""Put a decoder together: embedding and head around an architecture's blocks, every tensor accounted for."""

from collections.abc import Callable
from typing import Protocol

from pydflash.models.base import Block, Decoder
from pydflash.models.bind import Binder
from pydflash.state.base import StateSpec


class Sizes(Protocol):
    """What every decoder's config says of itself."""

    @property
    def arch(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def eps(self) -> float: ...

    def state_specs(self) -> list[StateSpec]: ...


def assemble(
    bind: Binder, sizes: Sizes, block: Callable[[int], Block], max_positions: int
) -> Decoder:
    """Bind the ends, then `block` of every layer. Without a head in the file the embedding serves again.

    The ends come first: while a matrix is repacked, its bytes in the file are in memory beside it, and
    these are the largest.
    """
    tied = not bind.has("output.weight")
    token_embd = bind.weight({"token_embd.weight": sizes.vocab}, sizes.hidden, table=not tied)
    output_norm = bind.vector("output_norm.weight", sizes.hidden)
    output = token_embd if tied else bind.weight({"output.weight": sizes.vocab}, sizes.hidden)
    blocks = [block(layer) for layer in range(sizes.layers)]
    bind.finish()
    return Decoder(
        arch=sizes.arch,
        ops=bind.ops,
        token_embd=token_embd,
        blocks=blocks,
        output_norm=output_norm,
        output=output,
        eps=sizes.eps,
        max_positions=max_positions,
        specs=sizes.state_specs(),
        nbytes=bind.nbytes,
    )
