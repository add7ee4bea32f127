"""The fast path against the F32 reference on real code and prose, and no farther from it than llama.cpp."""

import json
from pathlib import Path

import pytest

from pydflash.bench.harness import Rig
from pydflash.config import EngineConfig, RuntimeConfig, StateConfig
from tests.oracles.logits_kl import DOCUMENTS, REFERENCE, WINDOW, Distance, reference, windows

GOLDEN = Path(__file__).parents[1] / "golden" / "kl_llama_cpp.json"
MAX_KL = 3.4e-3
MIN_TOP1 = 0.97
AIM_KL = 1e-4
AIM_TOP1 = 0.995
FAST = EngineConfig(runtime=RuntimeConfig(threads=1), state=StateConfig(max_ctx=WINDOW))


def measure(fast: Rig, slow: Rig, model: Path, limit: int) -> dict[str, Distance]:
    """Distance of exact rows and of prefill rows over the first `limit` tokens of each document."""
    found = {"exact": Distance(), "prefill": Distance()}
    for document in DOCUMENTS:
        left = limit
        for window in windows(model, document):
            tokens = window[:left]
            left -= len(tokens)
            if not tokens:
                break
            want = reference(slow, tokens)
            fast.clear()
            found["exact"].add(want, fast.force(tokens, block=16))
            fast.clear()
            found["prefill"].add(want, fast.read_prompt(tokens, every=True))
    return found


@pytest.mark.model
@pytest.mark.parametrize(
    "limit",
    [pytest.param(150, id="short"), pytest.param(10_000, id="whole", marks=pytest.mark.slow)],
)
def test_fast_path_stays_close_to_f32(limit: int, smollm2: Path) -> None:
    peer = json.loads(GOLDEN.read_text())["all"]
    found = measure(Rig(smollm2, FAST), Rig(smollm2, REFERENCE), smollm2, limit)
    for kind, distance in found.items():
        assert distance.positions >= (300 if limit == 150 else 2000)
        assert distance.mean_kl <= min(MAX_KL, peer["mean_kl"]), kind
        assert distance.top1 >= max(MIN_TOP1, peer["top1"]), kind
        assert distance.mean_kl <= AIM_KL, kind
        assert distance.top1 >= AIM_TOP1, kind
