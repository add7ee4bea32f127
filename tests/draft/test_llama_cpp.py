"""llama.cpp's dialect of drafters, and what no container can say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pydflash.checkpoint.files import open_checkpoint
from pydflash.checkpoint.meta import Meta
from pydflash.checkpoint.writer import write_gguf as write_file
from pydflash.draft.bounds import check_config
from pydflash.draft.config import SelectorConfig
from pydflash.draft.files import open_drafter
from pydflash.draft.write import as_quant, write_gguf, write_safetensors
from pydflash.errors import CheckpointError, ConfigError, UnsupportedError
from pydflash.kernels.ref.quant import dequantize
from pydflash.layers.rope import RopeSpec
from tests.draft.edited import llama, refused
from tests.tiny.draft import CASES, tiny_config, tiny_draft
from tests.tiny.gguf import tiny_gguf

Values = dict[str, Any]
V1 = CASES["v1"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Meta:
    return open_checkpoint(tiny_gguf(tmp_path_factory.mktemp("t") / "t.gguf")).meta


def test_llama_cpp_counts_layer_inputs(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.meta.ints("dflash.target_layers") == [1, 2]
        assert checkpoint.meta.int("tokenizer.ggml.mask_token_id") == 317
        assert "fc.weight" in checkpoint.tensors
        assert "enc.output_norm.weight" in checkpoint.tensors
    with open_drafter(path) as drafter:
        assert drafter.config.target_layers == (0, 1)
    refused(
        llama(tmp_path / "e.gguf", tokenizer, target_layers=[0, 1]),
        "embeddings",
        error=UnsupportedError,
    )


def test_llama_cpp_stores_token_ids(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer, "reduced")
    want = CASES["reduced"].tensors()["d2t"] + torch.arange(96)
    with open_checkpoint(path) as checkpoint:
        stored = checkpoint.tensor("d2t")
        assert stored.format.name == "I64"
        assert torch.equal(stored.data.clone().view(torch.int64), want)


def test_llama_cpp_wants_successors_of_every_token_and_convolutions(
    tokenizer: Meta, tmp_path: Path
) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer, "reduced-selector")
    tensors = CASES["reduced-selector"].tensors()
    ids = tensors["d2t"] + torch.arange(96)
    with open_checkpoint(path) as checkpoint:
        stored = dequantize(checkpoint.tensor("selector_successor.weight"))
        assert torch.equal(stored[ids], tensors["dflash.selector.succ_cb"])
        assert stored.shape == (320, 8)
        assert int(stored.abs().sum(1).count_nonzero()) == 96
        assert checkpoint.meta.int("dflash.conv_kernel_size") == 1
        assert checkpoint.meta.int("dflash.conv_group_size") == 64
        for part in ("attn_conv", "ffn_conv"):
            assert dequantize(checkpoint.tensor(f"blk.1.{part}_base")).eq(1).all()
            assert dequantize(checkpoint.tensor(f"blk.1.{part}_proj.weight")).eq(0).all()


def test_llama_cpp_needs_room_for_the_selectors_scores(tokenizer: Meta, tmp_path: Path) -> None:
    config = tiny_config(selector=SelectorConfig(rank=8, top_k=8))  # 8 * 9 > 64
    with pytest.raises(UnsupportedError, match="so many candidates"):
        write_gguf(
            config, tiny_draft(config), tmp_path / "d.gguf", dialect="dflash", tokenizer=tokenizer
        )


def test_llama_cpp_refusals(tokenizer: Meta, tmp_path: Path) -> None:
    for key, value in (("embedding_scale", 8.0), ("hidden_act", "gelu")):
        path = llama(tmp_path / "d.gguf", tokenizer, **{key: value})
        refused(path, key, error=UnsupportedError)
    path = llama(tmp_path / "d.gguf", tokenizer, drop=("tokenizer.ggml.mask_token_id",))
    refused(path, "tokenizer.ggml.mask_token_id")
    path = llama(tmp_path / "d.gguf", tokenizer, drop=("dflash.target_layers",))
    refused(path, "dflash.target_layers")
    with pytest.raises(ConfigError, match="name the target's GGUF file"):
        write_gguf(V1.config, V1.tensors(), tmp_path / "x.gguf", dialect="dflash")
    other = tiny_config(vocab=300, mask_token=5)
    with pytest.raises(ConfigError, match="320 tokens, the drafter's target 300"):
        write_gguf(
            other, tiny_draft(other), tmp_path / "x.gguf", dialect="dflash", tokenizer=tokenizer
        )


def test_llama_cpp_own_embeddings_leave_the_masks_row(tokenizer: Meta, tmp_path: Path) -> None:
    path = llama(tmp_path / "d.gguf", tokenizer)
    table = torch.randn(320, 64)
    with open_checkpoint(path) as checkpoint:
        held = {name: checkpoint.tensor(name) for name in checkpoint.tensors}
        held["token_embd.weight"] = as_quant("token_embd.weight", table)
        held["output.weight"] = as_quant("output.weight", table)
        template = checkpoint.info("fc.weight")
        plan = [
            (
                replace(template, name=n, shape=t.shape, format=t.format, nbytes=t.nbytes),
                lambda t=t: t,
            )
            for n, t in held.items()
        ]
        write_file(tmp_path / "own.gguf", meta=checkpoint.meta, tensors=plan)
    with open_drafter(tmp_path / "own.gguf") as drafter:
        assert len(drafter.notes) == 2
        mask = dequantize(drafter.checkpoint.tensor("dflash.mask_embedding"))
        assert torch.equal(mask, table[317])
        assert "output.weight" not in drafter.checkpoint.tensors


def test_d2t_must_lead_to_distinct_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    case = CASES["reduced"]
    for change, words in ((1000, "outside the vocabulary"), (None, "same token twice")):
        tensors = case.tensors()
        tensors["d2t"][-1] = tensors["d2t"][-2] - 1 if change is None else change
        refused(write_gguf(case.config, tensors, tmp_path / "d.gguf"), words)


def test_writers_refuse_what_no_file_can_say(tmp_path: Path) -> None:
    config = tiny_config(windows=(16, 32))
    with pytest.raises(UnsupportedError, match=r"\[16, 32\]"):
        write_gguf(config, tiny_draft(config), tmp_path / "d.gguf")
    mixed = tiny_config(causal=(True, False))
    with pytest.raises(UnsupportedError, match="causal"):
        write_safetensors(mixed, tiny_draft(mixed), tmp_path / "d")
    path = write_gguf(mixed, tiny_draft(mixed), tmp_path / "d.gguf")
    with open_drafter(path) as drafter:
        assert drafter.config == mixed
    wrong = tiny_draft(mixed) | {"blk.0.attn_q.weight": torch.zeros(64, 32)}
    with pytest.raises(CheckpointError, match=r"blk\.0\.attn_q\.weight is \[64, 32\]"):
        write_gguf(mixed, wrong, tmp_path / "d.gguf")
    with pytest.raises(ConfigError, match="no dialect"):
        write_gguf(mixed, tiny_draft(mixed), tmp_path / "d.gguf", dialect="llama")
    with pytest.raises(ConfigError, match="float64"):
        write_gguf(V1.config, {n: t.double() for n, t in V1.tensors().items()}, tmp_path / "d.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 1025},
        {"heads": 3},
        {"eps": 0.0},
        {"mask_token": 320},
        {"draft_vocab": 400},
        {"logit_scale": 0.0},
        {"windows": (2, None)},
        {"causal": (True,)},
        {"target_layers": ()},
        {"rope": RopeSpec(dims=32, base=1e4, interleaved=False)},
    ],
)
def test_check_config_refuses(changes: Values) -> None:
    with pytest.raises(CheckpointError, match="cannot be"):
        check_config(replace(tiny_config(), **changes))
