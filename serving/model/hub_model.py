"""Models named by command lines and configurations as folders: those of the Hugging Face Hub are fetched first.

Cheap to import, and to call for a folder: the Hub's library is imported for a model of the Hub only.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from serving.config.model import hub_reference
from serving.config.serve import ServeConfig


def model_folder(text: str, tell: Callable[[str], None], part: Literal["config", "all"] = "all") -> Path:
    """The folder for a command-line argument; a model of the Hub is fetched first.

    Args:
        tell, part: as for `serving.model.hub.fetch`.
    Raises: as `fetch`. The existence of a folder is checked by its readers.
    Effects: as `fetch`, for a model of the Hub; none for a folder.
    """
    reference = hub_reference(text, Path())
    if reference is None:
        return Path(text)
    from serving.model.hub import fetch

    return fetch(reference, tell, part).path


def with_model_folder(
    config: ServeConfig,
    tell: Callable[[str], None],
    *,
    weights: bool = True,
    check: Callable[[ServeConfig, Path | None, int], None] | None = None,
) -> ServeConfig:
    """The configuration with a folder in place of a model of the Hub.

    The Hub's commit is the version of the weights, so that copies that hosts fetched at different times agree.

    Args:
        tell: as for `serving.model.hub.fetch`.
        weights: the model will be served; otherwise only its configuration is read. Simulated NPUs do not read weights
            either.
        check: as for `fetch`, with the configuration as an additional first argument.
    Raises, Effects: as `fetch`, for a model of the Hub; none for a folder.
    """
    model = config.model
    if model.hub is None:
        return config
    from serving.model.hub import fetch

    part: Literal["config", "text", "all"] = "config"
    if weights:
        part = "text" if config.engine.executor == "simulated" else "all"
    own_check = None if check is None else partial(check, config)
    found = fetch(model.hub, tell, part, tokenizer=not model.tokenizer, check=own_check)
    return replace(config, model=replace(model, path=found.path, version=model.version or found.commit))
