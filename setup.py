"""Compile the CPU library into the wheel when a compiler is there; without one it is built on first use.

Everything else about the package is in pyproject.toml.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

sys.path.insert(0, str(Path(__file__).parent / "src"))

from pydflash.kernels.cpu.compile import BuildError, build


class BuildWithKernels(build_py):
    """Adds pydflash/kernels/cpu/pydflash_cpu-*.so to what is packaged."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a checkout builds on first use, so that edited sources are never stale
        target = Path(self.build_lib) / "pydflash" / "kernels" / "cpu"
        try:
            build(target, everything=True)
        except BuildError as error:
            self.warn(f"CPU kernels not compiled ({error}); they will be on first use")


class PlatformWheel(Distribution):
    """The wheel carries machine code, so it belongs to this platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformWheel)
