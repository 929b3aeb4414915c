"""What tests of several executors have in common."""

import pytest

from tests.fakes.every_guess import guess_always


@pytest.fixture
def every_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `guess_always`."""
    guess_always(monkeypatch)
