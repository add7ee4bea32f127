"""Find and load the CPU library, compiled on first use if need be (`compile.py`).

It is looked for beside this file (a wheel may ship it), then in the user's cache. torch is imported first:
both then share one OpenMP runtime and one pool of threads.
"""

import ctypes
import functools
import logging
import os
import warnings
from ctypes import c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path

import torch

from pydflash.errors import ConfigError
from pydflash.kernels.cpu.compile import BuildError, build, file_name
from pydflash.kernels.cpu.records import layout_number
from pydflash.paths import cache_dir

log = logging.getLogger(__name__)

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
    "pf_attention_layer": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_int32)),
    "pf_dense_layer": (None, (c_void_p, c_void_p, c_int64, c_int32)),
    "pf_attention": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32)),
    "pf_store_kv": (None, (c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int32)),
    "pf_top": (
        None,
        (c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p, c_int32),
    ),
    "pf_delta": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32),
    ),
    "pf_delta_layer": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32),
    ),
    "pf_delta_commit": (
        None,
        (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_int32),
    ),
    "pf_moe": (None, (c_void_p, c_void_p, c_void_p, c_float, c_int64, c_void_p, c_int32)),
}


def kernels_dir() -> Path:
    """Where libraries built on first use live."""
    return cache_dir() / "kernels"


def find() -> Path | None:
    """The library already built for these sources, if there is one."""
    shipped = Path(__file__).parent / file_name(everything=True)
    for path in (shipped, kernels_dir() / file_name()):
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
        path = find()
        if path is None:
            log.warning(
                "compiling the CPU kernels for this machine, once; this takes half a minute"
            )
            path = build(kernels_dir())
        return open_library(path)
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
