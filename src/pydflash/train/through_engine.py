"""EngineTarget: any architecture the engine runs, as a training target. Slower than `dense`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.config import EngineConfig
from pydflash.engine.batch import RowWork, build
from pydflash.engine.request import Phase, Request
from pydflash.engine.request import Sequence as Row_
from pydflash.engine.scheduler import Row
from pydflash.sampling.params import SamplingParams
from pydflash.service.events import Finished
from pydflash.service.llm import LLM
from pydflash.train.target import Order, TargetShape, head_name, matrix

Tensor = torch.Tensor
_CHUNK = 256


class EngineTarget:
    """Text from the serving engine, features from the model's own forward with taps."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self._path = path
        self._llm = LLM(path, config=config)
        self._engine = self._llm.loaded.engine
        self.device = self._engine.states.kv.ops.device
        checkpoint = open_checkpoint(path)
        meta = checkpoint.meta
        hidden, heads = meta.int("{arch}.embedding_length"), meta.int("{arch}.attention.head_count")
        self.shape = TargetShape(
            arch=meta.arch,
            layers=meta.int("{arch}.block_count"),
            hidden=hidden,
            vocab=self._engine.model.vocab_size,
            heads=heads,
            kv_heads=meta.int("{arch}.attention.head_count_kv", default=heads),
            head_dim=meta.int("{arch}.attention.key_length", default=hidden // heads),
            ffn=meta.int("{arch}.feed_forward_length", default=hidden * 3),
            eps=meta.float("{arch}.attention.layer_norm_rms_epsilon"),
            rope_base=meta.float("{arch}.rope.freq_base", default=10000.0),
            max_positions=self._engine.max_ctx,
        )

    def embedding(self) -> Tensor:
        return matrix(open_checkpoint(self._path), "token_embd.weight", self.device)

    def head(self) -> Tensor:
        checkpoint = open_checkpoint(self._path)
        return matrix(checkpoint, head_name(checkpoint), self.device)

    def features(self, tokens: Tensor, layers: Sequence[int]) -> Tensor:
        def rows() -> Tensor:
            return torch.stack([self._row(row, layers) for row in tokens.tolist()])

        return self._llm.call(rows)

    def generate(self, order: Order, progress: Callable[[int], None]) -> list[list[int]]:
        answers = [
            self._llm.start(
                prompt,
                SamplingParams(
                    temperature=temperature,
                    max_tokens=order.max_new,
                    min_p=order.min_p if temperature else 0.0,
                    seed=order.seed + i,
                ),
            )
            for i, (prompt, temperature) in enumerate(
                zip(order.prompts, order.temperatures, strict=True)
            )
        ]
        results = []
        for answer in answers:
            *_, end = answer
            assert isinstance(end, Finished)
            stop = [end.stop] if isinstance(end.stop, int) else []
            results.append([*end.tokens, *stop])
            progress(len(results[-1]))
        return results

    def close(self) -> None:
        self._llm.close()

    def _row(self, tokens: list[int], layers: Sequence[int]) -> Tensor:
        engine, pieces = self._engine, []
        state = engine.states.new()
        request = Request(prompt=tuple(tokens), params=SamplingParams(), seed=0)
        try:
            for start in range(0, len(tokens), _CHUNK):
                piece = tokens[start : start + _CHUNK]
                sequence = Row_(request=request, max_tokens=1, tokens=tokens[: start + len(piece)])
                sequence.phase, sequence.stored = Phase.PREFILL, start
                state.reserve(len(piece))
                work = RowWork(Row(sequence, Phase.PREFILL, len(piece)), state, None)
                batch = build([work], self.device)
                taps = engine.model.forward(batch, engine.states.layers, frozenset(layers)).taps
                pieces.append(torch.cat([taps[i] for i in layers], -1))
                state.extend(len(piece))
        finally:
            state.release()
        return torch.cat(pieces)
