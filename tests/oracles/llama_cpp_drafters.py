"""Does llama.cpp load the drafters we write, and draft the same with them?

    python -m tests.oracles.llama_cpp_drafters write DIR     (here)
    python tests/oracles/llama_cpp_drafters.py check DIR     (where llama-cpp-python >= 0.3.36 is)

One line per drafter that llama.cpp's dialect can hold. Exit code 1 if one is refused, or if a slot's best
token or any log-probability (heads: the best tokens) differs from ours by more than half floats explain.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np

POSITIONS = 24
ANCHOR = 5
BOUND = 0.02


def write(directory: Path) -> None:
    """Tiny drafters of every kind, each in its own file, and what ours make of random features."""
    import torch

    from pydflash.checkpoint.files import open_checkpoint
    from pydflash.draft.write import write_gguf
    from pydflash.errors import UnsupportedError
    from tests.draft.test_load import scores
    from tests.tiny.draft import CASES
    from tests.tiny.gguf import tiny_gguf

    directory.mkdir(parents=True, exist_ok=True)
    target = tiny_gguf(directory / "target.gguf")
    meta = open_checkpoint(target).meta
    for name, case in CASES.items():
        path = directory / f"{name}.gguf"
        try:
            write_gguf(case.config, case.tensors(), path, dialect="dflash", tokenizer=meta)
        except UnsupportedError as error:
            print(f"{name}: not written: {error}")
            continue
        c = case.config
        rng = torch.Generator().manual_seed(1)
        features = torch.randn(POSITIONS, len(c.target_layers) * c.target_hidden, generator=rng)
        top_k = c.selector.top_k if c.selector else c.draft_vocab or c.vocab
        got = scores(path, target, features, anchor=ANCHOR, top_k=top_k)
        np.savez(
            directory / f"{name}.npz",
            features=features.numpy(),
            tokens=got.tokens,
            logp=got.logp,
            block=c.block_size,
            first=0 if c.from_anchor else 1,
            mask=c.mask_token,
            causal=c.causal[0],
            mixed=len(set(c.causal)) > 1,
            top_k=top_k,
            head="selector" if c.selector else "markov" if c.markov else "none",
        )


def check(directory: Path) -> bool:
    """Load every file with llama.cpp and compare; whether all is well."""
    import llama_cpp as lib

    said: list[str] = []
    keep = lib.llama_log_callback(lambda _, text, __: said.append(text.decode("utf-8", "replace")))
    lib.llama_log_set(keep, ctypes.c_void_p(0))
    lib.llama_backend_init()
    target = _load(lib, directory / "target.gguf")
    lender = lib.llama_init_from_model(target, _params(lib))
    fine = True
    for path in sorted(directory.glob("*.npz")):
        said.clear()
        model = _load(lib, path.with_suffix(".gguf"))
        if not model:
            print(f"{path.stem}: refused: {'; '.join(s.strip() for s in said if 'error' in s)}")
            fine = False
            continue
        case = np.load(path)
        if case["mixed"]:
            print(f"{path.stem}: loads, but llama.cpp has one causal flag for all layers")
            continue
        params = _params(lib)
        params.ctx_other = lender
        context = lib.llama_init_from_model(model, params)
        if case["head"] == "selector":
            path_of = _walk(lib, context, model, case)
            same = np.array_equal(path_of, case["tokens"][:, 0])
            verdict = "same greedy path" if same else f"another path: {path_of}"
        else:
            verdict = _verdict(_draft(lib, context, model, case), case)
        fine &= verdict.startswith("same")
        print(f"{path.stem}: {verdict}")
    return fine


def _verdict(logits: np.ndarray, case: Any) -> str:
    """logits f32 [S, V] against the saved scores."""
    best = case["tokens"][:, 0]
    if not np.array_equal(logits.argmax(1), best):
        return f"other tokens: {logits.argmax(1)} for {best}"
    if case["head"] != "none":
        return "same best tokens"
    known = np.isfinite(logits)
    whole = np.log(np.exp(np.where(known, logits, -np.inf)).sum(1, keepdims=True))
    logp = np.take_along_axis(logits - whole, case["tokens"].astype(np.int64), 1)
    off = float(np.abs(logp - case["logp"]).max())
    return f"same, log-probabilities within {off:.1e}" if off < BOUND else f"off by {off:.3f}"


def _draft(lib: Any, context: Any, model: Any, case: Any) -> np.ndarray:
    """The logits of a block, f32 [S, V]."""
    _run(lib, context, case, logits=True)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows = [
        np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocab,)).copy()
        for i in range(int(case["first"]), int(case["block"]))
    ]
    return np.stack(rows)


def _walk(lib: Any, context: Any, model: Any, case: Any) -> list[int]:
    """DFlash2's greedy path: of each slot llama.cpp gives top_k ids and top_k x top_k scores."""
    native = lib.llama_cpp._lib  # llama-ext.h, which the package does not bind
    allow = native["_Z26llama_set_embeddings_nextnP13llama_contextbb"]
    allow.argtypes, allow.restype = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool], None
    fetch = native["_Z26llama_get_embeddings_nextnP13llama_context"]
    fetch.argtypes, fetch.restype = [ctypes.c_void_p], ctypes.POINTER(ctypes.c_float)
    allow(context, True, False)
    _run(lib, context, case, logits=False)
    block, width, k = int(case["block"]), lib.llama_model_n_embd(model), int(case["top_k"])
    lattice = np.ctypeslib.as_array(fetch(context), (block, width))
    path, before = [], 0
    for row in lattice[1:]:
        before = int(row[k : k + k * k].reshape(k, k)[before].argmax())
        path.append(int(row[before]))
    return path


def _run(lib: Any, context: Any, case: Any, *, logits: bool) -> None:
    """Features into the drafter's cache, then one block."""
    features = np.ascontiguousarray(case["features"], np.float32)
    lib.llama_set_causal_attn(context, bool(case["causal"]))
    count, width = features.shape
    batch = lib.llama_batch_init(count, width, 1)
    ctypes.memmove(batch.embd, features.ctypes.data, features.nbytes)
    _place(batch, count, 0, logits=False)
    assert lib.llama_decode(context, batch) == 0
    block = int(case["block"])
    batch = lib.llama_batch_init(block, 0, 1)
    for i in range(block):
        batch.token[i] = int(case["mask"]) if i else ANCHOR
    _place(batch, block, count, logits=logits)
    assert lib.llama_decode(context, batch) == 0


def _place(batch: Any, count: int, start: int, *, logits: bool) -> None:
    batch.n_tokens = count
    for i in range(count):
        batch.pos[i] = start + i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = logits


def _load(lib: Any, path: Path) -> Any:
    return lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())


def _params(lib: Any) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = 256, 1, 1
    params.type_k = params.type_v = 0  # F32
    return params


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        sys.exit(not check(Path(sys.argv[2])))
