"""Record llama.cpp's distance from F32 logits on the golden texts: what our fast path must not exceed.

python -m tests.oracles.llama_cpp_kl --peer-python PYTHON [--model NAME]   (PYTHON has llama_cpp)
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from pydflash import catalog
from pydflash.bench.harness import Rig
from pydflash.bench.machine import sha256
from pydflash.bench.peer import PeerProcess
from tests.oracles.logits_kl import DOCUMENTS, REFERENCE, WINDOW, Distance, reference, windows

OUT = Path(__file__).parents[1] / "golden" / "kl_llama_cpp.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python")
    parser.add_argument("--model", default=catalog.DEFAULT_MODEL)
    asked = parser.parse_args()
    model = catalog.resolve(asked.model)
    rig = Rig(model, REFERENCE)
    total = Distance()
    documents = {}
    with (
        PeerProcess(model, threads=1, ctx=WINDOW, python=asked.peer_python) as peer,
        tempfile.TemporaryDirectory() as scratch,
    ):
        out = Path(scratch) / "logits.npy"
        for document in DOCUMENTS:
            one = Distance()
            for tokens in windows(model, document):
                want = reference(rig, tokens)
                peer.ask("logits", tokens=tokens, out=str(out))
                got = torch.from_numpy(np.load(out))
                one.add(want, got)
                total.add(want, got)
            documents[document] = _figures(one)
        found = {
            "model": {"file": model.name, "sha256": sha256(model)},
            "peer": peer.version,
            "window": WINDOW,
            "all": _figures(total),
            "documents": documents,
        }
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(OUT.read_text())


def _figures(distance: Distance) -> dict[str, float]:
    return {
        "positions": distance.positions,
        "mean_kl": distance.mean_kl,
        "top1": distance.top1,
    }


if __name__ == "__main__":
    main()
