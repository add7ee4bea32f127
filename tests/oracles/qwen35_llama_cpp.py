"""Record llama.cpp's logits on tiny Qwen3.5 files into tests/golden/qwen35_llama_cpp.npz (and .json).

    python -m tests.oracles.qwen35_llama_cpp --peer-python PYTHON

PYTHON has `llama_cpp`. Keys and values are F32, tokens are teacher-forced one at a time. Every STRIDE-th
logit is kept, and of all of them the best two and the log of the sum of exponentials. The files are made by
`tiny_gguf` from a seed; the hash of their weights tells whether they still are the ones recorded.
"""

import argparse
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pydflash.bench.peer import PeerProcess
from pydflash.checkpoint.files import open_checkpoint
from tests.tiny.gguf import tiny_gguf
from tests.tiny.qwen35 import DeltaShape, MoeShape

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen35_llama_cpp"
STRIDE = 7
VOCAB = 280
TOKENS = [(7919 * i + 13) % VOCAB for i in range(200)]
CASES: dict[str, dict[str, Any]] = {
    f"{arch}-{form}": {"arch": arch, "formats": form}
    for arch in ("qwen35", "qwen35moe", "qwen3moe")
    for form in ("F32", "Q8_0")
}


def make(case: str, path: Path) -> Path:
    """The model file of a case. Quantised ones are shallow and their routers decided, so that rounding
    does not send a token to another expert."""
    layers = 4 if case.endswith("F32") else 2
    moe = MoeShape(router=2 if layers == 4 else 12, shared=0 if "qwen3moe" in case else 32)
    delta = DeltaShape(interval=layers, state=32)
    shape: dict[str, Any] = {"layers": layers, "head_dim": 32, "vocab": VOCAB}
    return tiny_gguf(path, **shape, delta=delta, moe=moe, **CASES[case])


def weights_hash(path: Path) -> str:
    """SHA-256 over the tensors in order of name."""
    digest = hashlib.sha256()
    with open_checkpoint(path) as checkpoint:
        for name in sorted(checkpoint.tensors):
            digest.update(name.encode())
            digest.update(checkpoint.tensor(name).data.contiguous().numpy().tobytes())
    return digest.hexdigest()


def figures(logits: torch.Tensor) -> dict[str, np.ndarray]:
    """What is kept of logits f32 [T, V]."""
    best = logits.topk(2)
    return {
        "some": logits[:, ::STRIDE].numpy(),
        "best": best.indices.numpy().astype(np.int16),
        "margin": (best.values[:, 0] - best.values[:, 1]).numpy(),
        "lse": logits.logsumexp(-1).numpy(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python")
    python = parser.parse_args().peer_python
    arrays, notes = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            path, out = make(case, Path(scratch) / "tiny.gguf"), Path(scratch) / "logits.npy"
            with PeerProcess(path, threads=1, ctx=256, python=python, exact=True) as peer:
                peer.ask("logits", tokens=TOKENS, out=str(out), block=1)
                notes[case] = {"weights": weights_hash(path), "peer": peer.version}
            found = figures(torch.from_numpy(np.load(out)))
            arrays |= {f"{case}.{name}": values for name, values in found.items()}
    np.savez_compressed(GOLDEN.with_suffix(".npz"), **arrays)
    GOLDEN.with_suffix(".json").write_text(json.dumps(notes, indent=1) + "\n")


if __name__ == "__main__":
    main()
