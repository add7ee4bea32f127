"""`pydflash rm`: delete models from the cache."""

from typing import Annotated

from cyclopts import Parameter

from pydflash import catalog
from pydflash.catalog.cache import megabytes


def rm(*models: Annotated[str, Parameter(help="names as `pydflash models` lists them")]) -> None:
    """Delete models from the cache."""
    from pydflash.errors import ConfigError

    if not models:
        raise ConfigError("name the models to delete; `pydflash models` lists them")
    for model in models:
        print(f"removed {model}: {megabytes(catalog.remove(model))} freed")
