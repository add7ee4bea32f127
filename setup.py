"""Compile the CPU library into the wheel when a compiler is there; without one it is built on first use.

Everything else about the package is in pyproject.toml.
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).parent


class BuildWithKernels(build_py):
    """Adds pydflash/kernels/cpu/pydflash_cpu-*.so to what is packaged."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout builds on first use, so that edited sources are never stale
        target = Path(self.build_lib) / "pydflash" / "kernels" / "cpu"
        try:
            _compile()(target)
        except Exception as error:
            self.warn(f"CPU kernels not compiled ({error}); they will be on first use")


class MaybeBinary(Distribution):
    """The wheel belongs to this platform if it carries a library."""

    def has_ext_modules(self) -> bool:
        return True


def _compile():
    """`build` of kernels/cpu/compile.py, which imports nothing but the standard library."""
    path = ROOT / "src" / "pydflash" / "kernels" / "cpu" / "compile.py"
    spec = importlib.util.spec_from_file_location("pydflash_cpu_compile", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.build


setup(cmdclass={"build_py": BuildWithKernels}, distclass=MaybeBinary)
