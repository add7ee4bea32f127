"""Drafters that come with the package, and which model each was made for."""

from importlib.resources import files
from pathlib import Path

from pydflash.draft.files import open_drafter
from pydflash.draft.fit import TargetFacts, is_made_for
from pydflash.errors import CheckpointError


def shipped_drafter(target: TargetFacts) -> Path | None:
    """The file of the drafter made for this model, if the package has one."""
    folder = Path(str(files("pydflash").joinpath("data")))
    for path in sorted(folder.glob("*-dflash.gguf")):
        with open_drafter(path) as file:
            try:
                if is_made_for(file.config, target):
                    return path
            except CheckpointError:
                continue
    return None
