"""Bench: the arithmetic of a report, a rig over a tiny model, and the peer's worker protocol."""

import io
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pydflash.bench import llama_cpp, peer
from pydflash.bench.ceilings import Ceilings, measure
from pydflash.bench.harness import Rig, branching
from pydflash.bench.machine import provenance
from pydflash.bench.peer import PeerProcess
from pydflash.bench.process import measure_process
from pydflash.bench.report import Samples, ratio, save
from pydflash.bench.speed import measure_speed
from pydflash.bench.step import measure_steps
from pydflash.cli.main import main
from pydflash.config import EngineConfig, KvFormat, RuntimeConfig, StateConfig
from pydflash.errors import CapacityError, ConfigError, EngineError
from tests.fake_peer import FakePeer
from tests.tiny.gguf import tiny_gguf

CONFIG = EngineConfig(
    runtime=RuntimeConfig(ops="ref", threads=1),
    state=StateConfig(cache_type_k="f32", cache_type_v="f32", max_ctx=128),
)


@pytest.fixture
def fake_python(tmp_path: Path) -> str:
    """An executable that stands for the Python of an environment with llama_cpp."""
    return FakePeer(tmp_path).python


@pytest.fixture(scope="module")
def rig(tiny_llama: Path) -> Rig:
    return Rig(tiny_llama, CONFIG)


def test_ratio_compares_best_and_median() -> None:
    ours, theirs = Samples((1.0, 2.0, 6.0)), Samples((4.0, 8.0, 4.5))
    assert ratio(ours, theirs) == {"min": 0.25, "median": 2.0 / 4.5}
    assert ours.to_json()["median_s"] == 2.0


def test_floor_is_the_slower_ceiling() -> None:
    ceilings = Ceilings(read_bytes_s=10.0, flops_s=100.0, threads=1)
    assert (ceilings.floor(20.0, 100.0), ceilings.bound(20.0, 100.0)) == (2.0, "memory")
    assert (ceilings.floor(20.0, 500.0), ceilings.bound(20.0, 500.0)) == (5.0, "arithmetic")


def test_ceilings_are_raised_by_faster_work() -> None:
    probed = Ceilings(read_bytes_s=10.0, flops_s=100.0, threads=1)
    raised = probed.raised(5.0, 400.0, 2.0, "step of 8 rows")
    assert (raised.read_bytes_s, raised.read_by) == (10.0, "probe")
    assert (raised.flops_s, raised.flops_by) == (200.0, "step of 8 rows")
    assert raised.floor(5.0, 400.0) == 2.0


def test_measured_ceilings_are_of_this_world() -> None:
    ceilings = measure(1, tries=1)
    assert 1e8 < ceilings.read_bytes_s < 1e13
    assert 1e8 < ceilings.flops_s < 1e15


def test_save_names_an_unwritable_file(tmp_path: Path) -> None:
    save(tmp_path / "run.json", "step", {"steps": []})
    assert json.loads((tmp_path / "run.json").read_text())["kind"] == "step"
    with pytest.raises(ConfigError, match="cannot be written"):
        save(tmp_path / "missing" / "run.json", "step", {})


def test_provenance_names_model_and_machine(tiny_llama: Path) -> None:
    told = provenance(tiny_llama, 3)
    assert told["model"]["bytes"] == tiny_llama.stat().st_size
    assert len(told["model"]["sha256"]) == 64
    assert told["threads"] == 3
    assert told["cpu"]
    assert str(tiny_llama.parent) not in json.dumps(told)


def test_rig_cost_counts_every_matrix_once(rig: Rig) -> None:
    # Two layers of 64 wide: q, k, v, output, gate, up, down, and the untied head of 320 rows.
    layer = 64 * (64 + 32 + 32) + 64 * 64 + 3 * 64 * 96
    elements = 2 * layer + 320 * 64
    cost = rig.cost(1, 0)
    assert cost.nbytes == 4 * elements
    assert cost.flops == 2 * elements + 4 * 128  # a query head sees itself
    deeper = rig.cost(4, 10)
    assert deeper.nbytes - cost.nbytes == 10 * 2 * 2 * 32 * 4  # layers, K and V, kv width, f32
    assert deeper.flops == 8 * elements + 4 * 128 * (4 * 10 + 4 * 5 / 2)


def test_rig_reads_forces_and_goes_back(rig: Rig) -> None:
    tokens = llama_cpp.pattern(40, 0, rig.vocab_size)
    rig.clear()
    read = rig.read_prompt(tokens, every=True)
    rig.clear()
    forced = rig.force(tokens, block=7)
    assert read.shape == forced.shape == (40, 320)
    assert torch.allclose(read, forced, atol=1e-4)
    rig.clear(20)
    assert torch.equal(rig.verify(tokens[20:25]), forced[20:25])
    assert rig.state.length == 20
    with pytest.raises(CapacityError, match="context of 128"):
        rig.force([1] * 200, block=200)


def test_measure_steps_and_speed_take_turns(rig: Rig, fake_python: str, tiny_llama: Path) -> None:
    with PeerProcess(tiny_llama, threads=1, ctx=128, python=fake_python) as other:
        steps, ceilings = measure_steps(rig, other, depth=33, rows=(1, 5), rounds=2)
        speed = measure_speed(rig, other, prompt=40, answer=3, depth=8, rounds=1)
    assert [(f.rows, f.shape) for f in steps] == [(1, "chain"), (5, "chain"), (5, "tree")]
    assert [f.commits is not None for f in steps] == [False, False, True]
    for figure in steps:
        assert len(figure.ours.seconds) == 6
        assert figure.theirs is not None
        assert figure.floor_s <= figure.ours.best
        assert figure.floor_s == ceilings.floor(figure.nbytes, figure.flops)
        assert figure.to_json()["ratio"]["min"] == figure.ours.best / 0.5
    prefill, decode = (f.to_json() for f in speed)
    assert (prefill["name"], prefill["tokens"]) == ("prefill", 40)
    assert decode["llama.cpp"]["best_tok_s"] == 3 / 0.25
    assert decode["speedup"]["min"] == pytest.approx(0.25 / decode["ours"]["min_s"])


def test_peer_tells_what_went_wrong(
    fake_python: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PeerProcess(tiny_llama, threads=1, ctx=64, python=fake_python) as other:
        assert (other.version, other.vocab_size) == ("peer 1", 320)
        with pytest.raises(EngineError, match="no such thing"):
            other.ask("fail")
        with pytest.raises(EngineError, match="died while asked to die"):
            other.ask("die")
    with pytest.raises(ConfigError, match="--peer-python"):
        PeerProcess(tiny_llama, threads=1, ctx=64, python="/nowhere/python")
    monkeypatch.setattr(peer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="llama-cpp-python"):
        PeerProcess(tiny_llama, threads=1, ctx=64)


def test_a_gpu_is_asked_for_and_refused_by_a_build_without(
    tmp_path: Path, tiny_llama: Path
) -> None:
    without = FakePeer(tmp_path)
    with pytest.raises(ConfigError, match=r"python has no GPU.*--peer-python"):
        PeerProcess(tiny_llama, threads=1, ctx=64, python=without.python, gpu=1)
    assert [a["do"] for a in without.asked()] == ["has_gpu"]
    peer.require_peer(without.python, None)
    fake = FakePeer(tmp_path, has_gpu=True)
    peer.require_peer(fake.python, 1)
    kinds: tuple[KvFormat, KvFormat] = ("q8_0", "f16")
    with PeerProcess(
        tiny_llama, threads=1, ctx=64, python=fake.python, gpu=1, cache_types=kinds
    ) as other:
        assert other.version == "peer 1"
    asked = fake.asked()[-1]
    assert (asked["do"], asked["gpu"], asked["cache_types"]) == ("load", 1, ["q8_0", "f16"])


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("", "its worker died"),
        ("Python 2.7", r"it says 'Python 2\.7'"),
        ("[1]", r"it says '\[1\]'"),
        ('{"has_gpu": true}', "it is no Python with llama_cpp"),
        ('{"ok": false, "error": "no llama_cpp"}', "no llama_cpp"),
    ],
)
def test_a_peer_that_cannot_run_is_refused(tmp_path: Path, told: str, error: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho '{told}'\nexit 3\n" if told else "#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match=error):
        peer.require_peer(str(script), None)
    with pytest.raises(ConfigError, match=r"cannot use .*: ModuleNotFoundError"):
        peer.require_peer(_without_llama_cpp(tmp_path), None)


def _without_llama_cpp(tmp_path: Path) -> str:
    script = tmp_path / "isolated"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_the_gpu_beside_a_device() -> None:
    found = [peer.gpu_of(name) for name in ("cpu", "cuda", "cuda:3", torch.device("cuda", 1))]
    assert found == [None, 0, 3, 1]


class FakeLibrary:
    """What a Peer asks of llama_cpp's C interface; it keeps the options."""

    GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_F32 = 1, 8, 0
    LLAMA_SPLIT_MODE_NONE, LLAMA_FLASH_ATTN_TYPE_DISABLED = 0, 0

    def __init__(self) -> None:
        self.model = SimpleNamespace(n_gpu_layers=-1, split_mode=1, main_gpu=0)
        self.context = SimpleNamespace(type_k=1, type_v=1, flash_attn_type=-1)

    def llama_model_default_params(self) -> SimpleNamespace:
        return self.model

    def llama_context_default_params(self) -> SimpleNamespace:
        return self.context

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 1


def test_a_peer_has_all_its_layers_on_one_gpu_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def options(**asked: Any) -> SimpleNamespace:
        lib = FakeLibrary()
        monkeypatch.setattr(llama_cpp, "library", lambda: (lib, None))
        llama_cpp.Peer("x.gguf", 1, 64, **asked)
        return SimpleNamespace(**vars(lib.model), **vars(lib.context))

    there = options(gpu=2, cache_types=["q8_0", "f16"])
    assert there.n_gpu_layers > 1000
    assert (there.split_mode, there.main_gpu) == (0, 2)
    assert (there.type_k, there.type_v, there.flash_attn_type) == (8, 1, -1)
    assert (there.n_batch, there.n_ubatch) == (2048, 2048)
    here = options(gpu=None, cache_types=["q8_0", "q8_0"])
    assert (here.n_gpu_layers, here.split_mode, here.main_gpu) == (0, 1, 0)
    assert (here.type_k, here.type_v, here.n_ubatch) == (1, 1, 512)
    exact = options(gpu=0, exact=True)
    assert (exact.type_k, exact.type_v, exact.flash_attn_type) == (0, 0, 0)


def test_peer_that_does_not_leave_is_killed(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = FakePeer(tmp_path, more="import time\ntime.sleep(600)").python
    monkeypatch.setattr(peer, "_EXIT_S", 0.1)
    other = PeerProcess(tiny_llama, threads=1, ctx=64, python=python)
    other.close()
    assert other._process.returncode == -signal.SIGKILL


def test_serve_answers_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoPeer:
        vocab_size = 9

        def __init__(self, path: str, threads: int, ctx: int) -> None:
            self.depth = 0

        def fill(self, depth: int) -> None:
            self.depth = depth

        def step(self, rows: int, depth: int, repeats: int) -> list[float]:
            return [rows / depth] * repeats

        def prefill(self, count: int) -> float:
            return 1.0 / count

        def decode(self, count: int, depth: int) -> tuple[float, float]:
            raise RuntimeError("out of context")

    monkeypatch.setattr(llama_cpp, "Peer", NoPeer)
    monkeypatch.setattr(llama_cpp, "_version", lambda: "fake")
    asked: list[Any] = [
        {"do": "step", "rows": 1, "depth": 1, "repeats": 1},
        {"do": "load", "path": "x", "threads": 1, "ctx": 8},
        {"do": "fill", "depth": 3},
        {"do": "step", "rows": 2, "depth": 4, "repeats": 2},
        {"do": "prefill", "count": 4},
        {"do": "decode", "count": 1, "depth": 1},
        {"do": "dance"},
        "not an object",
    ]
    out = io.StringIO()
    llama_cpp.serve([json.dumps(a) for a in asked], out)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [t["ok"] for t in told] == [False, True, True, True, True, False, False, False]
    assert "nothing is loaded" in told[0]["error"]
    assert told[1] == {"ok": True, "vocab_size": 9, "version": "fake"}
    assert told[3]["seconds"] == [0.5, 0.5]
    assert "out of context" in told[5]["error"]
    assert "dance" in told[6]["error"]


def test_bench_step_command_saves_figures(
    tiny_llama: Path, fake_python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "step.json"
    words = ["bench", "step", "--model", str(tiny_llama), "--rows", "1,3", "--rounds", "1"]
    words += ["--depth", "20", "--threads", "1", "--ops", "ref", "--json", str(out)]
    assert main([*words, "--vs", "llama.cpp", "--peer-python", fake_python]) == 0
    told = json.loads(out.read_text())
    assert (told["schema"], told["kind"], told["peer"]) == (1, "step", "peer 1")
    assert [s["rows"] for s in told["steps"]] == [1, 3, 3]
    assert 0 < told["steps"][2]["commit"]["median_s"] < told["steps"][2]["ours"]["median_s"]
    assert told["ceilings"]["read_bytes_s"] > 0
    assert "x floor" in capsys.readouterr().out


def test_bench_speed_command_saves_figures(tiny_llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    words = ["bench", "speed", "--model", str(tiny_llama), "--prompt", "40", "--answer", "3"]
    words += ["--depth", "8", "--rounds", "1", "--threads", "1", "--ops", "ref", "--no-process"]
    assert main([*words, "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    assert [s["name"] for s in told["speed"]] == ["prefill", "decode"]
    assert "process" not in told


@pytest.mark.parametrize(
    "words",
    [
        ["step", "--depth", "0"],
        ["step", "--rounds", "0"],
        ["speed", "--depth", "0"],
        ["speed", "--rounds", "-1"],
        ["speed", "--prompt", "0"],
        ["speed", "--answer", "0"],
    ],
    ids=" ".join,
)
def test_bench_refuses_nothing_to_measure(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert f"error: {words[1]} {words[2]} leaves nothing" in capsys.readouterr().err


@pytest.mark.parametrize("rows", ["", "0", "1,x", "4,1000"])
def test_bench_step_refuses_bad_rows(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", "--rows", rows]) == 2
    assert "--rows" in capsys.readouterr().err


def test_measure_process_starts_a_process(tiny_llama: Path) -> None:
    found = measure_process(tiny_llama, threads=1, max_ctx=128, ops="ref", tries=1)
    assert found.ops == "ref"
    assert 0 < found.first_token_s < 120
    assert found.peak_bytes > found.torch_bytes > 50 << 20
    # A prompt of 80-odd bytes in a small vocabulary, and 32 tokens: some pages of the four planned.
    page = found.kv_planned_bytes // 4
    assert found.kv_touched_bytes in {2 * page, 3 * page, 4 * page}
    beyond = (found.peak_bytes - found.torch_bytes - found.kv_touched_bytes) / found.file_bytes
    assert found.to_json()["peak_less_torch_and_kv_over_file"] == beyond
    assert found.to_json()["file_bytes"] == tiny_llama.stat().st_size


def test_rig_steps_from_one_depth_over_recurrent_layers(tmp_path: Path) -> None:
    """One row advances the recurrent slot in place; the next step must start from the same state."""
    rig = Rig(tiny_gguf(tmp_path / "tiny.gguf", "qwen35moe"), CONFIG)
    rig.fill(40)
    first = rig.verify([5])
    rig.clear(40)
    assert len(rig.step(1, 40, 2)) == len(rig.step(3, 40, 2)) == 2
    rig.clear(40)
    assert torch.equal(rig.verify([5]), first)
    steps, commits = rig.tree_step(6, 40, 1)
    assert 0 < commits[0] < steps[0]
    tokens = llama_cpp.pattern(6, 40, rig.vocab_size)
    path = [0, 2, 4, 5]  # beside the leaves 1 and 3
    assert (branching(tokens).path(5), rig.state.length) == (path, 44)
    committed = rig.verify([5])
    rig.clear(40)
    rig.force([tokens[node] for node in path], block=1)
    assert torch.equal(rig.verify([5]), committed), "the step commits what it proposed"
    assert rig.prefill(20) > 0
    assert rig.decode(3, 20) > 0
    one, many = rig.cost(1, 0), rig.cost(64, 0)
    shape = 3 * 32 * 64 * 4  # bytes of one expert
    slot = rig.engine.states.recurrent.nbytes / rig.engine.states.recurrent.num_slots
    assert many.nbytes - one.nbytes == pytest.approx(2 * 4 * shape - slot), "the other four of six"
