"""Parameters of which few are tested with each change, and the others nightly."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_nightly(values: Iterable[Any], chosen: Collection[Any], same_as: str) -> list[Any]:
    """Parameters; all but the chosen ones run nightly. A tuple represents several parameters.

    Args:
        same_as: test whose chosen parameters give the same guarantee.
    """
    assert chosen, "a guarantee needs a test with each change"
    mark = pytest.mark.nightly(same_as)
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=() if value in chosen else mark)
        for value in values
    ]
