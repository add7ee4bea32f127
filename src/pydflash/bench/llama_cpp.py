"""llama.cpp as a peer: a thin driver over the `llama_cpp` package's C interface, and a worker around it.

Self-contained (standard library, numpy, llama_cpp), so that another Python, with another environment, can
run this very file: `python llama_cpp.py` speaks JSON, one object a line, on stdin and stdout. A request is
{"do": name, ...arguments}; the answer {"ok": true, ...} or {"ok": false, "error": sentence}.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

UBATCH = 512  # tokens of a prompt's step, llama.cpp's own default
GPU_UBATCH = 2048  # what fills a GPU better
_EVERY_LAYER = 9999


class Peer:
    """One model in one context. Tokens of a step are one sequence; times are seconds of llama_decode, which
    on a GPU include the copy of the wanted logits to the host: the interface has no step without it."""

    def __init__(
        self,
        path: str,
        threads: int,
        ctx: int,
        *,
        exact: bool = False,
        gpu: int | None = None,
        cache_types: Sequence[str] = ("f16", "f16"),
    ) -> None:
        """`exact`: keys and values in F32 and plain attention, for comparing logits. `gpu`: the number of
        the one that holds everything, keys and values in `cache_types`; without, the CPU and F16."""
        lib, _ = library()
        self.lib: Any = lib
        self.ubatch = UBATCH if gpu is None else GPU_UBATCH
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        if gpu is not None:
            params.n_gpu_layers = _EVERY_LAYER
            params.split_mode = lib.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = gpu
        self.model = lib.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        options = lib.llama_context_default_params()
        options.n_ctx = ctx
        options.n_batch = options.n_ubatch = self.ubatch
        options.n_threads = options.n_threads_batch = threads
        options.no_perf = True
        if gpu is None:  # nor anything of a step on a GPU that this build has
            options.offload_kqv = options.op_offload = False
        else:
            options.type_k, options.type_v = (
                getattr(lib, f"GGML_TYPE_{name.upper()}") for name in cache_types
            )
        if exact:
            options.type_k = options.type_v = lib.GGML_TYPE_F32
            options.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.ctx = lib.llama_init_from_model(self.model, options)
        if not self.ctx:
            raise RuntimeError(f"llama.cpp cannot make a context of {ctx} positions")
        self.memory = lib.llama_get_memory(self.ctx)
        self.vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model)))
        self.batch = lib.llama_batch_init(self.ubatch, 0, 1)
        self.is_recurrent = bool(
            lib.llama_model_is_recurrent(self.model) or lib.llama_model_is_hybrid(self.model)
        )
        self.kept: tuple[int, Any] | None = None

    def clear(self, keep: int = 0) -> None:
        """Forget every position from `keep` on."""
        if keep == 0:
            self.lib.llama_memory_clear(self.memory, True)
        elif self.kept is not None and self.kept[0] == keep:
            self._restore(self.kept[1])
        elif not self.lib.llama_memory_seq_rm(self.memory, 0, keep, -1):
            raise RuntimeError(f"llama.cpp cannot go back to position {keep}")

    def feed(self, tokens: list[int], start: int, *, outputs: str = "last") -> float:
        """Decode one batch at positions start.. and wait; `outputs` is "all", "last" or "none"."""
        count = len(tokens)
        self.batch.n_tokens = count
        for i, token in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = start + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            wanted = outputs == "all" or (outputs == "last" and i == count - 1)
            self.batch.logits[i] = int(wanted)
        began = time.perf_counter()
        status = self.lib.llama_decode(self.ctx, self.batch)
        self.lib.llama_synchronize(self.ctx)
        took = time.perf_counter() - began
        if status != 0:
            raise RuntimeError(f"llama_decode of {count} tokens at {start} returned {status}")
        return took

    def read(self, count: int) -> Any:
        """Logits of the last batch's outputs: float32 [count, V], a copy."""
        import numpy as np

        found = self.lib.llama_get_logits(self.ctx)
        return np.ctypeslib.as_array(found, shape=(count, self.vocab_size)).copy()

    def fill(self, depth: int) -> None:
        """Start over and store `depth` positions."""
        self.clear()
        for start in range(0, depth, self.ubatch):
            size = min(self.ubatch, depth - start)
            self.feed(pattern(size, start, self.vocab_size), start)
        self.kept = (depth, self._save()) if self.is_recurrent else None

    def _save(self) -> Any:
        """A recurrent memory cannot be cropped: what is stored now, to come back to it."""
        blob = (ctypes.c_uint8 * self.lib.llama_state_seq_get_size(self.ctx, 0))()
        self.lib.llama_state_seq_get_data(self.ctx, blob, len(blob), 0)
        return blob

    def _restore(self, blob: Any) -> None:
        self.lib.llama_memory_clear(self.memory, True)
        if not self.lib.llama_state_seq_set_data(self.ctx, blob, len(blob), 0):
            raise RuntimeError("llama.cpp cannot restore its state")

    def step(self, rows: int, depth: int, repeats: int) -> list[float]:
        """Seconds of `repeats` steps of `rows` tokens, all logits wanted, after `depth` stored positions."""
        tokens = pattern(rows, depth, self.vocab_size)
        times = []
        for _ in range(repeats):
            self.clear(depth)
            times.append(self.feed(tokens, depth, outputs="all"))
        return times

    def prefill(self, count: int) -> float:
        """Seconds to read a prompt of `count` tokens, the last one's logits wanted."""
        self.clear()
        total = 0.0
        for start in range(0, count, self.ubatch):
            size = min(self.ubatch, count - start)
            last = "last" if start + size == count else "none"
            total += self.feed(pattern(size, start, self.vocab_size), start, outputs=last)
        return total

    def decode(self, count: int, depth: int) -> tuple[float, float]:
        """Seconds of `count` greedy steps after `depth` stored positions, with the argmax and without."""
        self.fill(depth)
        token, steps = 1, 0.0
        began = time.perf_counter()
        for i in range(count):
            steps += self.feed([token], depth + i)
            token = int(self.read(1)[0].argmax())
        return time.perf_counter() - began, steps

    def answer(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Read a prompt and write exactly `count` greedy tokens; the first one belongs to the prompt."""
        self.clear()
        read = 0.0
        for start in range(0, len(tokens), self.ubatch):
            piece = tokens[start : start + self.ubatch]
            read += self.feed(piece, start)
        written = [int(self.read(1)[0].argmax())]
        began = time.perf_counter()
        while len(written) < count:
            self.feed([written[-1]], len(tokens) + len(written) - 1)
            written.append(int(self.read(1)[0].argmax()))
        decode_s = time.perf_counter() - began
        return {"tokens": written, "prefill_s": read, "decode_s": decode_s}

    def logits(self, tokens: list[int], block: int = 64) -> Any:
        """Teacher-forced logits float32 [len(tokens), V], from an empty context."""
        import numpy as np

        self.clear()
        parts = []
        for start in range(0, len(tokens), block):
            piece = tokens[start : start + block]
            self.feed(piece, start, outputs="all")
            parts.append(self.read(len(piece)))
        return np.concatenate(parts)


def pattern(count: int, start: int, vocab_size: int) -> list[int]:
    """Some tokens that depend on their position alone: both sides of a comparison read the same ones."""
    return [(7919 * (start + i) + 13) % min(vocab_size, 30000) for i in range(count)]


@cache
def library() -> tuple[Any, Any]:
    """llama_cpp, told to be quiet by a callback that must live as long, and ready to load models."""
    import llama_cpp as lib

    quiet = lib.llama_log_callback(lambda level, text, data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    # Some builds have every backend in a library of its own, beside the main one, and load none unasked.
    loader, folder = lib.llama_cpp._lib, lib.llama_cpp._base_path
    if loader.ggml_backend_dev_count() == 0:
        loader.ggml_backend_load_all_from_path(str(folder).encode())
    return lib, quiet


def serve(lines: Any, out: Any) -> None:
    """Answer requests until the input ends."""
    peer: Peer | None = None
    for line in lines:
        try:
            request: dict[str, Any] = json.loads(line)
            verb = request.pop("do")
            if verb == "has_gpu":
                lib, _ = library()
                answer: dict[str, Any] = {"has_gpu": bool(lib.llama_supports_gpu_offload())}
            elif verb == "load":
                peer = Peer(**request)
                answer = {"vocab_size": peer.vocab_size, "version": _version()}
            elif peer is None:
                raise RuntimeError("nothing is loaded yet")
            else:
                answer = _answer(peer, verb, request)
            reply = {"ok": True, **answer}
        except (
            Exception
        ) as error:  # every failure is an answer; the other side decides what it means
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


def _answer(peer: Peer, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    if verb == "fill":
        peer.fill(request["depth"])
        return {}
    if verb == "step":
        return {"seconds": peer.step(request["rows"], request["depth"], request["repeats"])}
    if verb == "prefill":
        return {"seconds": peer.prefill(request["count"])}
    if verb == "decode":
        whole, steps = peer.decode(request["count"], request["depth"])
        return {"seconds": whole, "steps_s": steps}
    if verb == "answer":
        return peer.answer(request["tokens"], request["count"])
    if verb == "logits":
        import numpy as np

        np.save(request["out"], peer.logits(request["tokens"], request.get("block", 64)))
        return {}
    raise ValueError(f"unknown request {verb!r}")


def _version() -> str:
    import llama_cpp

    return f"llama_cpp {llama_cpp.__version__}"


def _main() -> None:
    # This file shares its name with the package it drives; its own folder must not shadow it.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    # llama.cpp may write to stdout; the answers keep the real one to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    _main()
