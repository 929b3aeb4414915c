"""Shared fixtures of command tests."""

import pytest


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal wide enough that no line of a command wraps."""
    monkeypatch.setenv("COLUMNS", "240")
