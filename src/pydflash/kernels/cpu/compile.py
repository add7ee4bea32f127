"""Compile the CPU library: which sources with which flags, and what the result is called.

A library is named after a hash of its sources and flags, so a stale one is never loaded. A build is renamed
into place whole, so two processes that build at once do no harm. Imports no torch: a wheel is built with it.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from pydflash.errors import ConfigError

SOURCES = Path(__file__).parent / "src"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fopenmp",
    "-ffp-contract=off",  # results are the same bits on every ISA only if nothing is fused behind our back
    "-fvisibility=hidden",
    "-w",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")

Units = tuple[tuple[str, tuple[str, ...]], ...]


class BuildError(ConfigError):
    """The library could not be compiled."""


def units(*, everything: bool = False) -> Units:
    """Translation units, each with the flags of its ISA: what this machine can run, or all for a wheel.

    AVX-512 takes longest to compile, so only a machine that has it (or a wheel) pays for it.
    """
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    avx512 = x86 and (everything or _has_avx512())
    found: list[tuple[str, tuple[str, ...]]] = []
    if avx512:
        found.append(("kernels_avx512.cpp", _AVX512))
    if x86:
        found.append(("kernels_avx2.cpp", _AVX2))
    found += [
        ("kernels_portable.cpp", ("-O2",) if x86 else ()),  # there it is for tests: compile it fast
        ("pack.cpp", ()),
        ("copy.cpp", ()),
        ("dispatch.cpp", ("-DPF_AVX512",) if avx512 else ()),
    ]
    return tuple(found)


def file_name(*, everything: bool = False) -> str:
    """Name of the library that belongs to these sources and flags."""
    parts = (FLAGS, units(everything=everything), platform.machine())
    digest = hashlib.sha256(repr(parts).encode())
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return f"pydflash_cpu-{digest.hexdigest()[:16]}.so"


def compiler() -> str | None:
    """Path of a C++ compiler: $CXX, else the first of c++, g++, clang++."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def build(target_dir: Path, *, everything: bool = False) -> Path:
    """Compile the library into `target_dir` and return its path; BuildError says why it could not be done.

    `everything` builds each instruction set of the architecture, for a wheel: put it beside this file.
    """
    command = compiler()
    if command is None:
        raise BuildError("no C++ compiler found; install g++ or clang++, or set CXX")
    target_dir.mkdir(parents=True, exist_ok=True)
    target = target_dir / file_name(everything=everything)
    wanted = units(everything=everything)
    with tempfile.TemporaryDirectory(dir=target_dir, prefix=".build-") as name:
        work = Path(name)
        jobs = [
            _start(
                [command, *FLAGS, *flags, "-c", str(SOURCES / unit), "-o", str(work / f"{unit}.o")]
            )
            for unit, flags in wanted
        ]
        objects = [str(work / f"{unit}.o") for unit, _ in wanted]
        link = [command, "-shared", "-fopenmp", *objects, "-o", str(work / target.name)]
        _finish(jobs)
        _finish([_start(link)])
        os.replace(work / target.name, target)
    return target


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _finish(jobs: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all of them, then complain about the first that failed."""
    outputs = [job.communicate()[0] for job in jobs]
    for job, output in zip(jobs, outputs, strict=True):
        if job.returncode:
            tail = output.decode(errors="replace").strip()[-2000:]
            raise BuildError(f"{job.args!r} failed with code {job.returncode}:\n{tail}")


def _has_avx512() -> bool:
    import torch

    return "AVX512" in torch.backends.cpu.get_cpu_capability()
