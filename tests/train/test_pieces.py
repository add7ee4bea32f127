"""The parts of training: data, anchors, masks, loss weights, replay, files of prompts, the plot."""

import json
import random
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch

from pydflash.errors import CheckpointError, ConfigError
from pydflash.train import documents as docs
from pydflash.train.acceptance import Drafts, chain_length, replay, tree_length
from pydflash.train.batches import batches, collate, draw_anchors
from pydflash.train.dense import DenseTarget
from pydflash.train.documents import Document
from pydflash.train.features import Features
from pydflash.train.loss import Labels, slot_weights
from pydflash.train.network import DraftNet
from pydflash.train.plot import write_plot
from pydflash.train.prompts import built_in, from_file, texts
from pydflash.train.recipe import NetworkRecipe, TrainRecipe, draft_config, spread_taps
from pydflash.train.sums import sums
from pydflash.train.trainer import History


def make(tokens: list[int], start: int = 2, domain: str = "x", greedy: bool = True) -> Document:
    return Document(tokens=np.array(tokens, np.int32), start=start, domain=domain, greedy=greedy)


def test_loops_are_thinned_out() -> None:
    loops = [make([1, 2, *[7, 8, 9] * 20]) for _ in range(50)]
    sound = [make([1, 2, *range(3, 60)]) for _ in range(27)]
    assert docs.repetition(loops[0].answer) > 0.9
    assert docs.repetition(sound[0].answer) == 0
    kept = docs.without_loops([*loops, *sound])
    assert len(kept) == 30
    assert sum(docs.repetition(d.answer) > 0.5 for d in kept) == 3


def test_split_keeps_equal_prompts_on_one_side() -> None:
    every = [make([i % 40, 5, i, i + 1], domain="ab"[i % 2]) for i in range(120)]
    train, held = docs.split(every, 3, seed=0)
    assert sorted(d.domain for d in held) == ["a"] * 3 + ["b"] * 3
    seen = {d.tokens[:2].tobytes() for d in train}
    assert not any(d.tokens[:2].tobytes() in seen for d in held)


def test_documents_survive_the_disk(tmp_path: Path) -> None:
    every = [make([1, 2, 3, 60000], domain="b"), make([4, 5, 6], 1, "a", greedy=False)]
    docs.save(tmp_path / "d.npz", every)
    back = docs.load(tmp_path / "d.npz")
    assert [(d.tokens.tolist(), d.start, d.domain, d.greedy) for d in back] == [
        (d.tokens.tolist(), d.start, d.domain, d.greedy) for d in every
    ]
    (tmp_path / "e.npz").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="no training documents"):
        docs.load(tmp_path / "e.npz")


def test_frequent_tokens_and_coverage() -> None:
    every = [make([0, 0, 5, 5, 5, 6, 6, 7])]
    ids = docs.frequent_tokens(every, 10, 3, always=[9])
    assert ids.tolist() == [5, 6, 9]
    assert docs.coverage(every, ids, 10) == pytest.approx(5 / 6)


def test_batches_repeat_and_go_on() -> None:
    rng = random.Random(0)
    every = [make([1] * rng.randint(4, 30)) for _ in range(50)]
    first = batches(every, tokens=100, max_len=20, seed=3)
    all_ = [next(first) for _ in range(20)]
    later = batches(every, tokens=100, max_len=20, seed=3, first=13)
    assert torch.equal(next(later).tokens, all_[13].tokens)
    assert all(b.tokens.numel() <= 100 for b in all_)
    assert all(b.tokens.shape[1] <= 20 for b in all_)
    with pytest.raises(ConfigError, match="no document"):
        next(batches([make([1, 2, 3])], tokens=9, max_len=9, seed=0))


def test_anchors_are_answered_positions_with_an_answer_behind() -> None:
    batch = collate([make([1] * 30, 5), make([1] * 9, 6)], 99)
    anchors = draw_anchors(batch, 20, seed=0, step=1)
    assert anchors.shape == (2, 10)
    for row, start, length in zip(anchors.tolist(), (5, 6), (30, 9), strict=True):
        real = [a for a in row if a >= 0]
        assert real == sorted(set(real))
        assert all(start <= a < length - 1 for a in real)
    assert [a for a in anchors[1].tolist() if a >= 0] == [6, 7]
    assert not torch.equal(anchors, draw_anchors(batch, 20, seed=0, step=2))


def test_a_block_sees_nothing_from_its_anchor_on(target: DenseTarget) -> None:
    config = draft_config(target.shape, NetworkRecipe(layers=2, block_size=6, draft_vocab=0), 1, {})
    net = DraftNet(
        config, target.embedding(), target.head(), None, dtype=torch.float32, positions=64
    )
    tokens = torch.randint(3, 300, (1, 30))
    features = target.features(tokens, config.target_layers).clone()
    anchors = torch.tensor([[8, 15]])
    with torch.no_grad():
        whole = net(features, tokens, anchors, 6)
        features[:, 15:] = 1e3  # what the second block must not see
        tokens[:, 16:] = 5
        assert torch.equal(net(features, tokens, anchors, 6), whole)
        # Causal slots: a shorter block begins the same.
        assert torch.allclose(net(features, tokens, anchors, 3), whole[:, :, :2], atol=1e-5)
        features[:, 14] += 1.0
        assert not torch.allclose(net(features, tokens, anchors, 6)[:, 1], whole[:, 1], atol=1e-4)
        assert torch.equal(net(features, tokens, anchors, 6)[:, 0], whole[:, 0])


def test_kept_features_are_the_computed_ones(
    target: DenseTarget, documents: list[Document]
) -> None:
    features = Features(target, (0, 2))
    batch = next(batches(documents, tokens=600, max_len=50, seed=0))
    wanted = features.of(batch)
    features.keep(documents, tokens=900, max_len=50)
    got = features.of(batch)
    for row, length in enumerate(batch.lengths.tolist()):
        assert torch.allclose(got[row, :length].float(), wanted[row, :length], rtol=0.01, atol=0.02)


def test_slot_weights() -> None:
    valid = torch.ones(1, 1, 4, dtype=torch.bool)
    valid[..., 3] = False
    labels = Labels(valid, valid, valid, valid)
    sure = slot_weights("dpace", 5.0, torch.zeros(1, 1, 4), labels)
    assert sure.tolist() == [[[3.0, 2.0, 1.0, 0.0]]]
    hopeless = slot_weights("dpace", 5.0, torch.full((1, 1, 4), 50.0), labels)
    assert hopeless.flatten().tolist() == pytest.approx([0.875, 0.375, 0.125, 0.0])
    decay = slot_weights("decay", 2.0, torch.zeros(1, 1, 4), labels)
    assert decay.flatten().tolist() == pytest.approx([1.0, np.exp(-0.5), np.exp(-1.0), 0.0])


def test_replay_counts_rounds() -> None:
    truth = np.array([9, 1, 2, 3, 1, 2, 3], np.int32)
    tokens = np.array([[1, 2], [2, 3]], np.int32)  # slot 1: 1 or 2; slot 2: 2 or 3
    pair = np.log(np.array([[[0.6, 0.4]] * 2, [[0.9, 0.1], [0.2, 0.8]]], np.float32))
    assert chain_length(tokens, pair, truth[1:]) == 2
    assert chain_length(tokens, pair, truth[2:]) == 0
    assert tree_length(tokens, pair, truth[2:], 1) == 0
    assert tree_length(tokens, pair, truth[2:], 4) == 2  # 1, 1-2, 2, 2-3 by probability
    drafts = Drafts(np.stack([tokens] * 6), np.stack([pair] * 6))
    assert replay(drafts, truth, 0) == 2  # 1 2 +3, 1 2 +3


def test_prompt_files(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Hi"}], "domain": "chat"},
        {"question": "2 + 2?"},
        {"text": "Once"},
    ]
    path = tmp_path / "my.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = from_file(path)
    assert texts(found) == ["Hi", "2 + 2?", "Once"]
    assert [p.domain for p in found] == ["chat", "my", "my"]
    (tmp_path / "p.txt").write_text("One\ntwo\n\nThree")
    assert texts(from_file(tmp_path / "p.txt")) == ["One\ntwo", "Three"]
    for bad in ('{"a": 1}', "[", "3"):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="line 1"):
            from_file(path)


def test_built_in_prompts_repeat() -> None:
    assert list(sums(random.Random(4), 30)) == list(sums(random.Random(4), 30))
    found = built_in(8, 1)
    assert len(found) == 8
    assert {p.domain for p in found} == {"code", "math", "chat"}


def test_taps_and_recipes() -> None:
    assert spread_taps(30) == (5, 13, 20, 28)
    assert spread_taps(3) == (0, 1, 2)
    with pytest.raises(ConfigError, match="loss"):
        TrainRecipe(loss="x")


def test_plot_is_svg(tmp_path: Path) -> None:
    history = History(
        [(i, 5 / i) for i in range(1, 900)],
        [(1, {"all": {"chain": 1.0}}), (9, {"all": {"chain": 2.0}})],
    )
    root = ET.parse(write_plot(tmp_path / "p.svg", history)).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
