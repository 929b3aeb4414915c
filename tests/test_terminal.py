"""The console that commands print their tables on."""

import pytest

from serving.terminal import PLAIN_WIDTH, table_console


def test_a_pipe_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_console().width == PLAIN_WIDTH
    monkeypatch.setenv("COLUMNS", "240")
    assert table_console().width == 240
