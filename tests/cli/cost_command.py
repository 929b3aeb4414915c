"""Run `cloudmatrix cost` in a test."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from serving.cli import command_parser


def cost(*words: str) -> int:
    """Run it. Returns: the exit code."""
    arguments = command_parser("cost").parse_args(["cost", *words])
    code: int = arguments.run(arguments)
    return code


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Output of the command."""
    assert cost(*words) == 0
    return capsys.readouterr().out


def shown(capsys: pytest.CaptureFixture[str], words: str | Sequence[str], *parts: str) -> str:
    """Output of the command for these words; asserts that it contains these parts."""
    text = printed(capsys, *(words.split() if isinstance(words, str) else words))
    assert [part for part in parts if part not in text] == []
    return text


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """JSON output of the command."""
    return json.loads(printed(capsys, *words, "--json"))
