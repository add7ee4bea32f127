"""Find, build and load the CPU library: one shared object from src/, compiled on first use if need be.

A library is named after a hash of its sources and flags, so a stale one is never loaded. It is looked for
beside this file (a wheel may ship it), then in the user's cache; a build is renamed into place whole, so
two processes that build at once do no harm. torch is imported first: both then share one OpenMP runtime
and one pool of threads.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch

from pydflash.errors import ConfigError
from pydflash.kernels.cpu.records import layout_number

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

_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "pf_layout": (c_int32, ()),
    "pf_select": (c_char_p, (c_char_p,)),
    "pf_pack": (None, (c_int32, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int32)),
    "pf_product": (
        None,
        (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_float, c_int32, c_int32),
    ),
    "pf_gate": (None, (c_void_p, c_int64, c_int64, c_void_p, c_int32, c_int32)),
    "pf_embed": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_int32)),
    "pf_copy": (None, (c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_int64)),
    "pf_attention": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32)),
    "pf_delta": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32),
    ),
    "pf_delta_commit": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32),
    ),
    "pf_moe": (None, (c_void_p, c_void_p, c_void_p, c_float, c_int64, c_void_p, c_int32)),
}


class BuildError(ConfigError):
    """The library could not be compiled."""


def units(*, everything: bool = False) -> Units:
    """Translation units, each with the flags of its ISA: what this machine can run, or all for a wheel.

    AVX-512 takes longest to compile, so only a machine that has it (or a wheel) pays for it.
    """
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    avx512 = x86 and (everything or "AVX512" in torch.backends.cpu.get_cpu_capability())
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


def cache_dir() -> Path:
    """Where libraries built on first use live."""
    root = os.environ.get("PYDFLASH_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "pydflash" / "kernels"


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


def find() -> Path | None:
    """The library already built for these sources, if there is one."""
    shipped = Path(__file__).parent / file_name(everything=True)
    for path in (shipped, cache_dir() / file_name()):
        if path.is_file():
            return path
    return None


@functools.cache
def load() -> ctypes.CDLL | None:
    """The library, built if need be; None after one warning when that is not possible.

    PYDFLASH_CPU_ISA (portable, avx2, avx512) overrides the choice of instruction set.
    """
    found = _attempt()
    if isinstance(found, str):
        warnings.warn(
            f"the fast CPU kernels are not available, falling back to slow ones: {found}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return found


def unavailable() -> str | None:
    """Why the library cannot be had, or None when it is loaded."""
    found = _attempt()
    return found if isinstance(found, str) and load() is None else None


@functools.cache
def _attempt() -> ctypes.CDLL | str:
    """The library or the reason against it, found out once."""
    try:
        return open_library(find() or build(cache_dir()))
    except (BuildError, OSError) as error:
        return str(error)


def open_library(path: Path) -> ctypes.CDLL:
    """Load `path`, declare its functions and choose the instruction set."""
    assert torch.get_num_threads() > 0  # torch, and its OpenMP runtime, are loaded by now
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    if library.pf_layout() != layout_number():
        raise BuildError(f"{path} was built from other sources; delete it")
    select(library, os.environ.get("PYDFLASH_CPU_ISA"))
    return library


def select(library: ctypes.CDLL, isa: str | None = None) -> str:
    """Use one instruction set from now on (the best one for None) and return its name."""
    chosen = library.pf_select(isa.encode() if isa else None)
    if chosen is None:
        raise ConfigError(
            f"PYDFLASH_CPU_ISA={isa} is not available here; use portable, or unset it to take the best one"
        )
    return str(chosen.decode())


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _finish(jobs: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all of them, then complain about the first that failed."""
    outputs = [job.communicate()[0] for job in jobs]
    for job, output in zip(jobs, outputs, strict=True):
        if job.returncode:
            tail = output.decode(errors="replace").strip()[-2000:]
            raise BuildError(f"{job.args!r} failed with code {job.returncode}:\n{tail}")
