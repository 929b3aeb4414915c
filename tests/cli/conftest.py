"""What tests of commands share."""

import pytest


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no line of a command wraps."""
    monkeypatch.setenv("COLUMNS", "240")
