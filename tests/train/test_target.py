"""The batched target says what the engine says: logits, features, greedy text."""

import threading
from pathlib import Path

import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.config import EngineConfig
from pydflash.engine.request import Phase
from pydflash.train.dense import DenseTarget
from pydflash.train.generate import generate
from pydflash.train.target import Order
from pydflash.train.through_engine import EngineTarget
from tests.driver import Driver
from tests.tiny.gguf import tiny_gguf

CPU = torch.device("cpu")
TOKENS = [5, 80, 44, 9, 301, 77, 12, 12, 150, 6, 33, 250, 8, 91, 14, 202, 61]
STOP = frozenset({0, 2})


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("llama", {"layers": 3, "rope_factors": True}),
        ("llama", {"bias": True, "tied": True, "formats": "Q8_0"}),
        ("qwen3", {"rope": {"freq_base": 5e5}}),
        ("qwen3", {"heads": 6, "kv_heads": 3, "hidden": 96}),
    ],
)
def test_logits_and_features_are_the_engines(tmp_path: Path, arch: str, options: dict) -> None:
    path = tiny_gguf(tmp_path / "t.gguf", arch, **options)
    driver = Driver(path, ops="ref")
    wanted = driver.prefill_all(driver.state(), list(TOKENS))
    target = DenseTarget(open_checkpoint(path), CPU, torch.float32)
    rows = torch.tensor([TOKENS, [*TOKENS[:9], *[0] * 8]])
    got = target.logits(rows)
    assert torch.allclose(got[0], wanted, atol=1e-4)
    assert torch.allclose(got[1, :9], wanted[:9], atol=1e-4), "padding on the right changed a row"
    driver.step([(driver.state(), Phase.PREFILL, list(TOKENS))], taps=frozenset({0, 1}))
    features = target.features(rows, (0, 1))[0]
    assert torch.allclose(features, torch.cat([driver.taps[0], driver.taps[1]], -1), atol=1e-4)


def test_generated_text_is_greedy_whatever_shares_the_batch(target: DenseTarget) -> None:
    prompts = [TOKENS[:n] for n in (3, 17, 1, 8, 5, 11)]
    order = Order(prompts=prompts, temperatures=[0.0] * 6, max_new=25, stop=STOP)
    told: list[int] = []
    few, many = generate(target, order, told.append, slots=2), generate(target, order, told.append)
    assert few == many
    assert sum(told) == 2 * sum(map(len, few))
    for prompt, answer in zip(prompts, few, strict=True):
        logits = target.logits(torch.tensor([[*prompt, *answer]]))[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer
        assert len(answer) == 25 or answer[-1] in STOP


def test_draws_follow_seed_and_temperature(target: DenseTarget) -> None:
    def draw(seed: int, heat: float) -> list[list[int]]:
        order = Order(
            prompts=[TOKENS] * 8, temperatures=[heat] * 8, max_new=12, stop=STOP, seed=seed
        )
        return generate(target, order, lambda n: None)

    assert draw(1, 1.0) == draw(1, 1.0)
    assert draw(1, 1.0) != draw(2, 1.0)
    assert len({tuple(x) for x in draw(1, 1.0)}) > 1
    assert len({tuple(x) for x in draw(1, 0.0)}) == 1


def test_other_architectures_go_through_the_engine(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "h.gguf", "qwen35", layers=4)
    target = EngineTarget(path, EngineConfig())
    try:
        driver = Driver(path, ops="ref")
        driver.step([(driver.state(), Phase.PREFILL, list(TOKENS))], taps=frozenset({1, 3}))
        wanted = torch.cat([driver.taps[1], driver.taps[3]], -1)
        threads, inner = set(), target._engine.model

        class Watched:
            def forward(self, *args: object) -> object:
                threads.add(threading.current_thread().name)
                return inner.forward(*args)  # type: ignore[arg-type]

        target._engine.model = Watched()  # type: ignore[assignment]
        got = target.features(torch.tensor([TOKENS]), (1, 3))[0]
        target._engine.model = inner
        assert threads == {"pydflash-engine"}
        assert torch.nn.functional.cosine_similarity(got, wanted).min() > 0.999
        order = Order(prompts=[TOKENS, TOKENS[:4]], temperatures=[0.0, 0.0], max_new=6, stop=STOP)
        answers = target.generate(order, lambda n: None)
        assert all(len(a) == 6 or a[-1] in STOP for a in answers)
    finally:
        target.close()
