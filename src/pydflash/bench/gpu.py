"""GPU bench: every figure the project promises of a device, in one process, each part on its own.

A part that fails says so and the next one runs; what was found is saved after each, since a lent machine may
be taken away at any time.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pydflash.bench import gpu_parts
from pydflash.bench.ceilings import Ceilings
from pydflash.bench.device_ceilings import measure_device
from pydflash.bench.gpu_breakdown import breakdown
from pydflash.bench.gpu_peer import Peer
from pydflash.bench.gpu_round import forced, round_
from pydflash.bench.gpu_start import measure_start, words
from pydflash.bench.gpu_subject import Before, Subject, configured
from pydflash.bench.harness import Rig
from pydflash.bench.machine import device_provenance
from pydflash.bench.peer import gpu_of, require_peer
from pydflash.config import EngineConfig
from pydflash.device import default_threads, torch_name
from pydflash.errors import ConfigError
from pydflash.kernels.ops import PAGE_SIZE
from pydflash.kernels.upload import trim

Say = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]

# Memory first: what others measure takes more of it than any service does.
LOADED: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "memory": gpu_parts.memory,
    "step": gpu_parts.step,
    "verify": gpu_parts.verify,
    "prefill": gpu_parts.prefill,
    "decode": gpu_parts.decode,
    "round": round_,
    "forced": forced,
    "breakdown": breakdown,
}
DRAFTED = ("round", "forced")
PARTS = ("ceilings", *LOADED, "eight", "start")
PEER = "peer"  # the last part, with --vs


def parse_parts(text: str, *, vs: str | None = None) -> list[str]:
    """Parts named with commas, in the order they run; with a peer, its own too. Raises ConfigError."""
    asked = [word for word in text.replace(" ", "").split(",") if word]
    if PEER in asked and vs is None:
        raise ConfigError("--only peer needs to be told which: add --vs llama.cpp")
    unknown = next((word for word in asked if word not in (*PARTS, PEER)), None)
    if unknown is not None:
        raise ConfigError(f"--only {unknown}: choose of {', '.join((*PARTS, PEER))}")
    chosen = [part for part in PARTS if not asked or part in asked]
    return chosen if vs is None else [*chosen, PEER]


def measure_gpu(
    path: Path,
    config: EngineConfig,
    parts: Sequence[str],
    *,
    say: Say,
    save: Save,
    repeats: int = 20,
    commit: str | None = None,
    peer_python: str | None = None,
) -> dict[str, Any]:
    """Run the parts on one loaded model; return what was also saved. Raises only what loading raises, and
    ConfigError where the peer cannot be had.

    `commit`: where the source is no checkout that could tell.
    """
    begun = time.perf_counter()
    config = configured(config)
    device = _device(config.runtime.target_device)

    if PEER in parts:
        require_peer(peer_python, gpu_of(device))

    def tell(line: str) -> None:
        say(f"{time.perf_counter() - begun:7.1f} s  {line}")

    body = device_provenance(path, device)
    body["commit"] = commit or body["commit"]
    context = _idle(device)
    tell(f"{body['device']}, torch {body['torch']}, commit {body['commit']}")
    floors = _ceilings(device, tell, body)
    save(body)
    if any(part in LOADED for part in parts):
        subject = _load(path, config, floors, repeats, tell, body)
        subject.before.context = context
        for part in parts:
            if part in LOADED and (part not in DRAFTED or subject.speculator is not None):
                _run(part, LOADED[part], subject, body, save)
        del subject
        _free(device)
    if "eight" in parts:
        _run("eight", lambda s: _eight(s, path, config, floors, repeats), tell, body, save)
    if "start" in parts:
        _run("start", lambda s: _start(s, path, config), tell, body, save)
    if PEER in parts:
        _run(PEER, lambda s: _peer(s, path, config, body, peer_python, repeats), tell, body, save)
    return body


def _run(part: str, work: Callable[[Any], Any], on: Any, body: dict[str, Any], save: Save) -> None:
    say: Say = on.say if isinstance(on, Subject) else on
    began = time.perf_counter()
    try:
        body[part] = work(on)
    except Exception as error:
        # Whatever it was, the other figures are worth having.
        body[part] = {"error": f"{type(error).__name__}: {error}"}
        say(f"{part} FAILED: {body[part]['error'].splitlines()[0]}")
    body.setdefault("part_s", {})[part] = round(time.perf_counter() - began, 2)
    save(body)


def _device(name: str) -> torch.device:
    """Where the target will be."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return torch.device(torch_name(name))


def _ceilings(device: torch.device, say: Say, body: dict[str, Any]) -> Ceilings:
    """Before the load, so that its memory is not the model's."""
    found = measure_device(device)
    say(
        f"copy {found.copy_bytes_s / 1e9:.0f} GB/s, read {found.read_bytes_s / 1e9:.0f} GB/s, "
        f"dense products {found.flops_s / 1e12:.1f} Tflop/s"
    )
    body["ceilings"] = found.to_json()
    return found.floors


def _load(
    path: Path,
    config: EngineConfig,
    floors: Ceilings,
    repeats: int,
    say: Say,
    body: dict[str, Any],
) -> Subject:
    before = Before.now(_device(config.runtime.target_device))
    began = time.perf_counter()
    rig = Rig(path, config)
    body["load_s"] = time.perf_counter() - began
    say(f"loaded in {body['load_s']:.1f} s, {rig.ops.name} kernels on {rig.ops.device}")
    for line in rig.plan.lines():
        say(f"  {line}")
    body["ops"] = rig.ops.name
    body["threads"] = rig.threads
    body["ctx"] = rig.ctx
    return Subject(rig=rig, floors=floors, say=say, repeats=repeats, before=before)


def _eight(
    say: Say, path: Path, config: EngineConfig, floors: Ceilings, repeats: int
) -> dict[str, Any]:
    """On a load of its own: so many sequences need more states than one, and no drafter."""
    count = gpu_parts.TOGETHER
    ctx = min(config.state.max_ctx or 2048, 2048)
    state = replace(
        config.state, max_concurrency=count, max_ctx=ctx, kv_pages=count * -(-ctx // PAGE_SIZE)
    )
    config = replace(config, state=state, spec=replace(config.spec, no_speculation=True))
    told: dict[str, Any] = {}
    subject = _load(path, config, floors, repeats, say, told)
    device = subject.rig.ops.device
    try:
        return gpu_parts.eight(subject) | {"load_s": told["load_s"]}
    finally:
        del subject
        _free(device)


def _start(say: Say, path: Path, config: EngineConfig) -> dict[str, Any]:
    found = measure_start(words(path, config))
    seconds = ", ".join(f"{s:.1f} s" for s in found["first_token_s"])
    say(f"start to first token: {seconds} (the last counts)")
    return found


def _peer(
    say: Say,
    path: Path,
    config: EngineConfig,
    body: dict[str, Any],
    python: str | None,
    repeats: int,
) -> dict[str, Any]:
    """Where ours ran, in as large a context; in its place if ours did not run."""
    state = config.state
    peer = Peer(
        model=path,
        python=python,
        gpu=gpu_of(_device(config.runtime.target_device)),
        threads=body.get("threads") or config.runtime.threads or default_threads(),
        ctx=body.get("ctx") or state.max_ctx or 2048,
        cache_types=(state.cache_type_k, state.cache_type_v),
    )
    return peer.measure(body, repeats, say)


def _free(device: torch.device) -> None:
    gc.collect()
    trim(device)


def _idle(device: torch.device) -> int:
    """Bytes of the device that are taken when this process can use it and has allocated nothing: its own
    context, and whatever others have there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Before.now(device).used
