"""Drafters whose settings were forged: understood, or refused by our own error, never anything else."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pydflash.checkpoint.meta import Meta
from pydflash.draft.bounds import check_config
from pydflash.draft.config import DraftConfig
from pydflash.draft.layout import Shapes, check_tensors
from pydflash.draft.read_gguf import read_llama_cpp, read_seeds
from pydflash.draft.read_json import read_json
from pydflash.draft.write_gguf_keys import llama_cpp_keys, seeds_keys
from pydflash.draft.write_json import config_json
from pydflash.errors import PydflashError
from tests.tiny.draft import CASES

FORGED: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 62, 0.5, -2.0, 1e30, float("nan"), float("inf"), "", "yarn",
    [], [1, "a"], [[1]], [-1, 5], [1 << 40], {}, {"a": 1}, {"rope_type": "yarn"},
)  # fmt: skip
PLAIN = [v for v in FORGED if not isinstance(v, dict) and v not in ([1, "a"], [[1]])]


def survives(read: Callable[[], tuple[DraftConfig, list[str]]], shapes: Shapes) -> bool:
    try:
        check_tensors(check_config(read()[0]), shapes, "forged")
    except PydflashError:
        return False
    return True


def shapes_of(case: str) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in CASES[case].tensors().items()}


@pytest.mark.parametrize("case", ["dflash2", "dspark", "reduced", "domino", "swa", "yarn"])
def test_read_json_survives_forged_settings(case: str) -> None:
    shapes = shapes_of(case)
    good = json.loads(json.dumps(config_json(CASES[case].config, shapes)))
    assert survives(lambda: read_json(good, shapes, "good"), shapes)
    places = [(key,) for key in good] + [
        (table, key) for table in ("dflash_config", "rope_scaling") for key in good[table] or ()
    ]
    extra = ("transformer_layer_config", "rope_parameters", "is_causal", "speculators_config")
    seen = {True: 0, False: 0}
    for place in [*places, *((key,) for key in extra)]:
        for value in FORGED:
            values = json.loads(json.dumps(good))
            table = values if len(place) == 1 else values[place[0]]
            table[place[-1]] = value
            seen[survives(lambda v=values: read_json(v, shapes, "forged"), shapes)] += 1
    assert min(seen.values()) > 100


@pytest.mark.parametrize("case", ["dflash2", "dspark", "reduced", "swa", "yarn"])
@pytest.mark.parametrize("read", [read_seeds, read_llama_cpp])
def test_read_gguf_survives_forged_metadata(read: Callable[..., Any], case: str) -> None:
    shapes, config = shapes_of(case), CASES[case].config
    tokens = {"tokenizer.ggml.tokens": ["x"] * config.vocab}
    if read is read_seeds:
        good = {"general.architecture": "dflash-draft"} | seeds_keys(config, "dflash-draft")
    else:
        target = Meta.from_values("target", tokens)
        good = {"general.architecture": "dflash"} | tokens | llama_cpp_keys(config, target, shapes)
    assert survives(lambda: read(Meta.from_values("good", good), shapes), shapes)
    seen = {True: 0, False: 0}
    for key in good:
        for value in PLAIN:
            values = {k: v for k, v in (good | {key: value}).items() if v is not None}
            meta = Meta.from_values("forged", values)
            seen[survives(lambda m=meta: read(m, shapes), shapes)] += 1
    assert min(seen.values()) > 50
