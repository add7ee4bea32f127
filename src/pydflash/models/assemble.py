"""Put a decoder together: embedding and head around an architecture's blocks, every tensor accounted for."""

from typing import Protocol

from pydflash.models.base import Block, Decoder
from pydflash.models.bind import Binder
from pydflash.state.base import StateSpec


class Sizes(Protocol):
    """What every decoder's config says of its ends."""

    @property
    def arch(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def eps(self) -> float: ...

    def state_specs(self) -> list[StateSpec]: ...


def assemble(bind: Binder, sizes: Sizes, blocks: list[Block], max_positions: int) -> Decoder:
    """Bind the embedding, the last norm and the head (the embedding again where the file has none)."""
    token_embd = bind.weight({"token_embd.weight": sizes.vocab}, sizes.hidden)
    output_norm = bind.vector("output_norm.weight", sizes.hidden)
    tied = not bind.has("output.weight")
    output = token_embd if tied else bind.weight({"output.weight": sizes.vocab}, sizes.hidden)
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
