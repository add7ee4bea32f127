"""`Mix`: which tensor gets which format, as llama.cpp chooses."""

import pytest

from pydflash.errors import ConfigError
from pydflash.quant.formats import FORMATS
from pydflash.quant.mix import MIXES, Mix, mix_type

F32 = FORMATS["F32"]
BF16 = FORMATS["BF16"]


def names(layers: int, *, tied: bool = False) -> list[str]:
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_down")
    made = [f"blk.{i}.{part}.weight" for i in range(layers) for part in parts]
    return [*made, "token_embd.weight", "output_norm.weight", *([] if tied else ["output.weight"])]


def chosen(kind: str, name: str, cols: int = 512, layers: int = 30, tied: bool = False) -> str:
    mix = Mix(mix_type(kind), names(layers, tied=tied))
    return mix.format_of(name, (64, cols), BF16).name


def test_mix_gives_some_layers_more_bits() -> None:
    better = {i for i in range(30) if chosen("Q4_K_M", f"blk.{i}.ffn_down.weight") == "Q6_K"}
    # llama.cpp's choice for 30 layers: the first 3, the last 4, and 5, 8, 11 ... between them.
    assert better == {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29}
    assert better == {i for i in range(30) if chosen("Q5_K_M", f"blk.{i}.attn_v.weight") == "Q6_K"}
    assert chosen("Q4_K_M", "blk.3.ffn_down.weight") == "Q4_K"
    assert chosen("Q4_K_M", "blk.0.attn_q.weight") == "Q4_K"
    assert chosen("Q4_K_M", "blk.0.attn_qkv.weight") == "Q5_K"
    assert chosen("Q4_K", "blk.0.ffn_down.weight") == "Q4_K"


def test_mix_counts_only_the_layers_that_have_the_tensor() -> None:
    mix = Mix(mix_type("Q4_K_M"), [f"blk.{i}.attn_v.weight" for i in range(3, 32, 4)])
    got = [mix.format_of(f"blk.{i}.attn_v.weight", (8, 256), F32).name for i in range(3, 32, 4)]
    assert [i for i, name in enumerate(got) if name == "Q6_K"] == [0, 3, 6, 7]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q4_K_M", "Q5_K"])
def test_mix_keeps_the_output_fine(kind: str) -> None:
    assert chosen(kind, "output.weight") == "Q6_K"
    assert chosen(kind, "output.weight", cols=288) == "Q8_0"
    assert chosen(kind, "token_embd.weight") == MIXES[kind].base.name
    assert chosen(kind, "token_embd.weight", tied=True) == "Q6_K"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q6_K"])
def test_mix_of_fine_types_is_uniform(kind: str) -> None:
    for name in names(4):
        if "norm" not in name:
            assert chosen(kind, name, layers=4) == kind


@pytest.mark.parametrize(
    ("kind", "cols", "expected"),
    [
        ("Q4_K", 576, "Q5_0"),
        ("Q5_K", 576, "Q5_1"),
        ("Q6_K", 576, "Q8_0"),
        ("Q2_K", 576, "Q4_0"),
        ("Q4_K_M", 40, "F16"),
        ("Q8_0", 40, "F16"),
        ("Q4_1", 576, "Q4_1"),
        ("BF16", 40, "BF16"),
    ],
)
def test_mix_falls_back_when_rows_are_not_whole_blocks(kind: str, cols: int, expected: str) -> None:
    assert chosen(kind, "blk.9.attn_q.weight", cols) == expected


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (512,)),
        ("blk.0.attn_q.bias", (512,)),
        ("blk.0.attn_q_norm.weight", (8, 256)),
        ("blk.0.ffn_gate_inp.weight", (8, 512)),
        ("blk.0.ssm_conv1d.weight", (512, 256)),
        ("rope_freqs.weight", (32,)),
    ],
)
def test_mix_leaves_small_tensors_alone(name: str, shape: tuple[int, ...]) -> None:
    assert Mix(MIXES["Q4_K"], names(2)).format_of(name, shape, F32) is F32


def test_mix_leaves_integers_alone_and_takes_experts() -> None:
    mix = Mix(MIXES["Q4_K"], names(2))
    whole = FORMATS["I32"]
    assert mix.format_of("blk.0.map.weight", (4, 256), whole) is whole
    stack = mix.format_of("blk.0.ffn_up_exps.weight", (8, 64, 512), FORMATS["IQ4_NL"])
    assert stack.name == "Q4_K"


def test_mix_type_names_what_there_is() -> None:
    assert mix_type("q4_k_m") is MIXES["Q4_K_M"]
    assert mix_type("Q4_K_S") is MIXES["Q4_K"]
    with pytest.raises(ConfigError, match="Q9_Z is not a type"):
        mix_type("Q9_Z")
