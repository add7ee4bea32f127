"""The GPU bench on the CPU: its arithmetic, and every part on a tiny model with a tiny drafter."""

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from pydflash.bench import gpu, gpu_breakdown, gpu_parts, gpu_round, gpu_start
from pydflash.bench.breakdown import DRAFT, GAPS, Launch, kind_of, lines, names, profiled
from pydflash.bench.forced import Forced, overwritten
from pydflash.bench.gpu import PARTS, parse_parts
from pydflash.bench.gpu_report import figures, markdown, picture
from pydflash.bench.gpu_subject import configured
from pydflash.bench.make_drafter import make_drafter, published
from pydflash.bench.stopwatch import Parts, Stopwatch
from pydflash.cli.main import main
from pydflash.config import EngineConfig, SpecConfig, StateConfig
from pydflash.draft.base import DraftRow
from pydflash.draft.files import open_drafter
from pydflash.errors import ConfigError, EngineError
from pydflash.spec.proposal import Proposal
from pydflash.spec.proposer import PlainProposer
from tests.fake_peer import FakePeer
from tests.tiny.gguf import tiny_gguf

CPU = torch.device("cpu")
TREE = Proposal(
    (9, 1, 2, 3, 5, 6, 7), (-1, 0, 1, 2, 0, 1, 3), (0, 1, 2, 3, 1, 2, 4)
)  # a chain of four, and two leaves beside it


def accepted(tree: Proposal, known: list[int]) -> int:
    """Nodes that a walk by the known draws goes down."""
    node, count = 0, 0
    while (child := tree.children().get((node, known[count]))) is not None:
        node, count = child, count + 1
    return count


def test_parts_run_in_their_own_order() -> None:
    assert parse_parts("") == list(PARTS)
    assert parse_parts("step, memory") == ["memory", "step"]
    with pytest.raises(ConfigError, match="--only speed: choose of ceilings, memory, step"):
        parse_parts("step,speed")


def test_kernels_are_told_apart_by_name() -> None:
    told = {
        "product_kernel": "products",
        "nvjet_hsh_128x256_64x4": "products",
        "attention_kernel": "attention",
        "rope_store_kernel": "attention",
        "delta_walk_kernel": "delta",
        "plant_kernel": "tree",
        "delta_norm_kernel": "delta",
        "add_norm_kernel": "norms and sums",
        "scan_kernel": "sampling",
        "Memcpy HtoD (Pinned -> Device)": "copies",
        "void at::native::vectorized_elementwise_kernel<4>": "copies",
        "something_else": "other",
    }
    assert {name: kind_of(name) for name in told} == told


def test_lines_sum_kinds_and_leave_gaps() -> None:
    launches = [
        Launch("product_kernel", 0.0, 30.0),
        Launch("product_kernel", 50.0, 10.0),
        Launch("attention_kernel", 60.0, 50.0),
        Launch("product_kernel", 120.0, 20.0),
    ]
    found = lines(launches, 2, 100.0, floors_us={"products": 16.0}, drafts=[(45.0, 58.0)])
    assert [(x.kind, x.us, x.launches, x.floor_us) for x in found] == [
        ("products", 25.0, 1.0, 16.0),
        ("attention", 25.0, 0.5, None),
        ("drafter: products", 5.0, 0.5, None),
        (GAPS, 45.0, 0.0, None),
    ]
    assert lines(launches, 1, 5.0)[-1].us == 0.0, "kernels may overlap: no gap is negative"
    assert names(launches, 2, most=1) == [
        {"name": "product_kernel", "kind": "products", "us": 30.0, "launches": 1.5}
    ]


def test_profiled_sees_work_and_the_stretch_of_drafting() -> None:
    class Drafter:
        def score(self) -> None:
            torch.ones(8).exp()

    drafter, parts = Drafter(), Parts(CPU)
    a = torch.ones(64, 64)

    def work() -> None:
        drafter.score()
        a.mm(a)

    with parts.watching((drafter, "score", DRAFT)):
        launches, drafts = profiled(work, 2, CPU)
    assert "score" not in vars(drafter)
    assert len(drafts) == 2
    assert len(parts.seconds[DRAFT]) == 3  # one that warms up
    kinds = {line.kind for line in lines(launches, 2, 1e9, drafts=drafts)}
    assert {"drafter: other", "other", GAPS} <= kinds
    assert not any(launch.name == DRAFT for launch in launches)


def test_stopwatch_counts_repeats() -> None:
    runs: list[int] = []
    watch = Stopwatch(CPU)
    assert len(watch.busy(lambda: runs.append(1), 3).seconds) == 3
    assert len(runs) == 3


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 4, 9])
@pytest.mark.parametrize("known", [[5, 6, 7, 8, 9, 9, 9], [4, 4, 4, 4, 4, 4, 4], list(range(7))])
def test_as_many_nodes_are_accepted_as_forced(nodes: int, known: list[int]) -> None:
    forced = overwritten(TREE, known, nodes)
    assert accepted(forced, known) == min(nodes, 4)
    assert (forced.parents, forced.depth) == (TREE.parents, TREE.depth)


def test_what_is_not_known_is_not_forced() -> None:
    assert overwritten(TREE, [5], 3) is TREE


def test_forced_lengths_have_the_mean() -> None:
    class Deep(PlainProposer):
        def propose(self, rows: Any, beside: int = 0) -> list[Proposal]:
            return [Proposal.chain([row.tokens[-1], *range(100, 115)]) for row in rows]

    known = list(range(2000))
    forced = Forced(Deep(), known, 4, 8.31)
    tokens, rounds = [0, 0, 0, 0, known[0]], 0
    lengths = set()
    while len(tokens) < 1500:
        (made,) = forced.propose([DraftRow(tokens=tokens)], 64)
        after = known[len(tokens) - 4 :]
        length = accepted(made, after) + 1
        lengths.add(length)
        tokens += after[:length]
        rounds += 1
    assert lengths == {8, 9}
    assert math.isclose((len(tokens) - 5) / rounds, 8.31, abs_tol=0.01)


def test_defaults_of_the_bench() -> None:
    plain = configured(EngineConfig())
    assert (plain.step.prefill_chunk, plain.spec.no_speculation) == (2048, True)
    assert plain.state.prefix_cache == "off"
    drafted = configured(EngineConfig(spec=SpecConfig(draft="d.gguf")))
    assert (drafted.spec.ddtree_budget, drafted.spec.no_speculation) == (22, False)


def test_the_published_shape() -> None:
    """z-lab's for Qwen3.5 and 3.6 27B, as its files state it."""
    c = published("qwen3.5-27b")
    assert (c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim) == (5120, 5, 32, 8, 128)
    assert (c.ffn, c.block_size, c.vocab, c.mask_token) == (17408, 16, 248320, 248070)
    assert c.target_layers == (1, 16, 31, 46, 61)
    assert c.windows == (2048, 2048, 2048, 2048, None)
    assert published("qwen3.5-35b-a3b", 3).ffn == 4096


def test_make_drafter_writes_what_is_read_again(tmp_path: Path, tiny_llama: Path) -> None:
    config = published(str(tiny_llama), 2)
    path = make_drafter(config, tmp_path / "d.gguf", type="Q8_0")
    with open_drafter(path) as drafter:
        assert drafter.config == config
        assert drafter.tensors()["blk.1.ffn_up.weight"].format.name == "Q8_0"
    assert main(["bench", "make-drafter", str(tiny_llama), str(path)]) == 2  # it exists


def test_start_reports_a_process_that_fails() -> None:
    quick = [sys.executable, "-c", "print('x')"]
    found = gpu_start.measure_start(quick)
    assert len(found["first_token_s"]) == 2
    assert found["counts_s"] == found["first_token_s"][1]
    assert found["first_token_s"][1] <= found["process_s"][1]
    with pytest.raises(EngineError, match="ended with 3: no such thing"):
        gpu_start.first_token_s(
            [
                sys.executable,
                "-c",
                "import sys; print('no such thing', file=sys.stderr); sys.exit(3)",
            ]
        )


def test_start_asks_for_the_same_options() -> None:
    state = StateConfig(max_ctx=4096, cache_type_k="q8_0")
    said = gpu_start.words(Path("m.gguf"), EngineConfig(state=state, spec=SpecConfig(draft="d")))
    text = " ".join(said)
    assert "run m.gguf hi --max-tokens 1" in text
    assert "--cache-type-k q8_0 --cache-type-v f16 --max-ctx 4096 --draft d" in text


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths at which every part still runs."""
    for module, name, value in (
        (gpu_parts, "ROWS", (2, 5)),
        (gpu_parts, "DECODE", 4),
        (gpu_parts, "TOGETHER", 2),
        (gpu_parts, "PREFILL", 64),
        (gpu_round, "_ROUNDS", 3),
        (gpu_round, "_WATCHED", 2),
        (gpu_round, "_FORCED", 6),
        (gpu_breakdown, "_REPEATS", 1),
        (gpu_breakdown, "_TREE", 3),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_every_part_runs(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_gguf(tmp_path / "tiny.gguf", arch)
    draft = make_drafter(published(str(model), 2), tmp_path / "draft.gguf", type="Q8_0")
    monkeypatch.setattr(gpu, "words", lambda *_: [sys.executable, "-c", "print('hi')"])
    out = tmp_path / "run.json"
    words = ["bench", "gpu", str(model), "--draft", str(draft), "--ops", "ref", "--threads", "1"]
    words += ["--max-ctx", "256", "--repeats", "2", "--json", str(out), "--commit", "abc"]
    assert main(words) == 0
    body = json.loads(out.read_text())
    told = capsys.readouterr().out
    failed = {part: body[part]["error"] for part in PARTS if "error" in body[part]}
    assert not failed
    assert body["commit"] == "abc"
    assert set(body["part_s"]) == set(PARTS) - {"ceilings"}
    assert body["forced"]["identical"] is True
    assert body["forced"]["tokens_a_round"] == pytest.approx(8.31, abs=0.5)
    assert "FORCED acceptance" in told
    assert set(body["step"]) == {"depth 64", "depth 224"}
    assert body["round"]["block"] == 16
    assert set(body["round"]["parts"]) == {
        f"{name}_s" for name in ("whole", "draft", "tree", "verify", "draws", "commit", "rest")
    }
    assert any(x["kind"].startswith("drafter: ") for x in body["breakdown"]["round"]["kinds"])
    assert "| one-token step, depth 64 |" in out.with_suffix(".md").read_text()
    ElementTree.fromstring(out.with_suffix(".svg").read_text())


@pytest.mark.usefixtures("quick")
def test_a_part_that_fails_does_not_stop_the_next(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(subject: object) -> dict[str, Any]:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(gpu.LOADED, "step", broken)
    out = tmp_path / "run.json"
    words = ["bench", "gpu", str(tiny_llama), "--only", "step,decode,round", "--ops", "ref"]
    assert main([*words, "--max-ctx", "128", "--json", str(out)]) == 0
    body = json.loads(out.read_text())
    assert body["step"] == {"error": "RuntimeError: no such kernel"}
    assert body["decode"]["tok_s"] > 0
    assert "round" not in body, "nobody drafts"
    assert [name for name, _ in figures(body)][-1] == "decode through the engine"
    assert "no such kernel" not in markdown(body)
    ElementTree.fromstring(picture(body))


@pytest.mark.usefixtures("quick")
def test_a_peer_is_measured_beside_us(tiny_llama: Path, tmp_path: Path) -> None:
    fake = FakePeer(tmp_path)
    out = tmp_path / "run.json"
    words = ["bench", "gpu", str(tiny_llama), "--only", "step,verify,decode", "--ops", "ref"]
    words += ["--threads", "1", "--max-ctx", "256", "--repeats", "2", "--json", str(out)]
    words += ["--cache-type-k", "f32", "--vs", "llama.cpp", "--peer-python", fake.python]
    assert main([*words, "--target-device", "cpu"]) == 0
    body = json.loads(out.read_text())
    told = body["peer"]
    assert (told["version"], told["gpu"], told["ubatch"], told["ctx"]) == ("peer 1", None, 512, 256)
    assert told["ratio"] == {
        "one-token step, depth 64": body["step"]["depth 64"]["wall"]["median_s"] / 0.5,
        "2 rows, a chain beside our tree and commit, depth 64": (
            body["verify"]["2 rows"]["whole"]["median_s"] / 0.5
        ),
        "one-token step, depth 224": body["step"]["depth 224"]["wall"]["median_s"] / 0.5,
        "decode of 4 tokens, depth 64": 4 / body["decode"]["tok_s"] / 0.25,
    }
    page = out.with_suffix(".md").read_text()
    assert "**llama.cpp** (peer 1) on the CPU, steps of 512 prompt tokens" in page
    assert "| prefill of 64 tokens |  | 256.0 tok/s |  |" in page, "our prefill was not asked for"
    asked = fake.asked()
    (load,) = [a for a in asked if a["do"] == "load"]
    assert (load["ctx"], load["threads"], load["gpu"]) == (256, 1, None)
    assert load["cache_types"] == ["f32", "f16"]
    assert [a["depth"] for a in asked if a["do"] == "fill"] == [64, 64, 224]
    assert {a["repeats"] for a in asked if a["do"] == "step"} == {2, 3}


def test_a_peer_alone_has_nobody_beside_it(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = ["bench", "gpu", str(tiny_llama), "--json", str(out), "--target-device", "cpu"]
    assert main([*words, "--only", "peer"]) == 2
    assert parse_parts("peer", vs="llama.cpp") == ["peer"]
    assert parse_parts("", vs="llama.cpp") == [*PARTS, "peer"]
    words += ["--only", "peer", "--vs", "llama.cpp"]
    assert main([*words, "--peer-python", str(tmp_path / "nowhere")]) == 2
    assert not out.exists(), "refused before anything is measured"
    assert main([*words, "--max-ctx", "1024", "--peer-python", FakePeer(tmp_path).python]) == 0
    told = json.loads(out.read_text())["peer"]
    assert (told["ctx"], told["ratio"]) == (1024, {})
    assert [line["name"] for line in told["figures"]] == [
        "one-token step, depth 256",
        "24 rows, a chain beside our tree and commit, depth 256",
        "one-token step, depth 992",
        "prefill of 992 tokens",
        "decode of 64 tokens, depth 256",
    ]


def test_repeats_must_measure_something(tiny_llama: Path) -> None:
    assert main(["bench", "gpu", str(tiny_llama), "--repeats", "1"]) == 2
