"""The real model on a GPU: the same answers with drafts as without, and the distance from the F32 reference.

    python -m tests.gpu.exactness SmolLM2.gguf [--prompts 200] [--json FILE] [--device cuda:0] [--only kl]

The prompts are those of tests/spec/test_smollm2_drafts.py, the text that of tests/oracles/logits_kl.py.
Stages stand alone; what was found is saved after each.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("PYDFLASH_TEST_DEVICE", "cuda")

from pydflash import catalog
from pydflash.bench.harness import Rig
from pydflash.bench.machine import device_provenance
from pydflash.config import EngineConfig, RuntimeConfig, SpecConfig, StateConfig
from pydflash.device import torch_name
from tests.oracles.logits_kl import DOCUMENTS, WINDOW, Distance, reference, windows
from tests.spec import test_smollm2_drafts as drafts

PLAIN = SpecConfig(no_speculation=True)
Figures = dict[str, Any]


def same(want: list[tuple[int, ...]], spec: SpecConfig, concurrency: int) -> Figures:
    """How many answers have the tokens of plain decoding."""
    got = drafts.answers(spec, len(want), concurrency)
    different = [i for i, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]]
    return {
        "prompts": len(want),
        "equal": len(want) - len(different),
        "different": different[:10],
    }


def distance(path: Path, device: str) -> Figures:
    """Exact rows and prompt rows against F32 on the CPU; where the best token differs, by how much."""
    wide = StateConfig(cache_type_k="f32", cache_type_v="f32", max_ctx=WINDOW)
    host = RuntimeConfig(ops="ref", target_device="cpu")
    ref = Rig(path, EngineConfig(runtime=host, spec=PLAIN, state=wide))
    runtime, narrow = RuntimeConfig(target_device=device), StateConfig(max_ctx=WINDOW)
    rig = Rig(path, EngineConfig(runtime=runtime, spec=PLAIN, state=narrow))
    found = {"exact": Distance(), "prefill": Distance()}
    errors: list[float] = []
    margins: list[
        tuple[float, float]
    ] = []  # of the reference's best token, and the row's largest error
    for document in DOCUMENTS:
        for tokens in windows(path, document):
            want = reference(ref, tokens).cpu()
            rig.clear()
            exact = rig.force(tokens, block=16).cpu()
            found["exact"].add(want, exact)
            rig.clear()
            found["prefill"].add(want, rig.read_prompt(tokens, every=True).cpu())
            error = (exact - want).abs().amax(1)
            errors += error.tolist()
            best, theirs = exact.argmax(-1), want.argmax(-1)
            for i in (best != theirs).nonzero().flatten().tolist():
                margins.append((float(want[i].max() - want[i, best[i]]), float(error[i])))
    errors.sort()
    out: Figures = {
        name: {"positions": d.positions, "mean_kl": d.mean_kl, "top1": d.top1}
        for name, d in found.items()
    }
    out["largest_margin_where_top1_differs"] = max((m for m, _ in margins), default=0.0)
    out["all_margins_within_twice_own_error"] = all(m <= 2 * e for m, e in margins)
    out["max_logit_error_median"] = errors[len(errors) // 2]
    out["max_logit_error_p99"] = errors[int(len(errors) * 0.99)]
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", default="", help="stages with commas, of those below")
    asked = parser.parse_args()
    path: Path = asked.model
    catalog.resolve = lambda spec: path  # the suite asks for the model by its name
    body: Figures = dict(device_provenance(path, torch.device(torch_name(asked.device))))
    plain: list[tuple[int, ...]] = []

    def ask() -> Figures:
        plain.extend(drafts.answers(PLAIN, asked.prompts, 1))
        return {"prompts": len(plain), "tokens": sum(map(len, plain))}

    stages: dict[str, Callable[[], Figures]] = {
        "plain": ask,
        "adaptive_1": lambda: same(plain, SpecConfig(), 1),
        "adaptive_8": lambda: same(plain, SpecConfig(), 8),
        "tree16_1": lambda: same(plain, SpecConfig(ddtree_budget=16), 1),
        "kl": lambda: distance(path, asked.device),
    }
    if asked.only:
        names = asked.only.split(",")
        stages = {name: stages[name] for name in names}
    failed = 0
    for name, stage in stages.items():
        began = time.perf_counter()
        try:
            body[name] = stage()
        except Exception as error:  # the other stages are worth having
            body[name] = {"error": f"{type(error).__name__}: {error}"}
            failed += 1
        print(name, body[name], f"{time.perf_counter() - began:.1f} s", flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(body, indent=1) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
