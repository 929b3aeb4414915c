"""The reader's report of commands that fail."""

from pathlib import Path

import pytest

from tests.tutorials.page import Block
from tests.tutorials.reader import Reader


def block(commands: str) -> Block:
    return Block(commands, None, "", by_hand=False)


@pytest.mark.real_time
def test_a_block_that_hangs_is_told_with_what_it_printed_and_logged(tmp_path: Path) -> None:
    with Reader(tmp_path, patience_s=2.0) as one, pytest.raises(AssertionError) as caught:
        one.do(block("echo begun; echo no port > head.log; sleep 600"))
    for words in ("not done after 2 s", "begun", "--- head.log", "no port"):
        assert words in str(caught.value)


def test_a_block_that_fails_is_told_with_its_logs(tmp_path: Path) -> None:
    with Reader(tmp_path) as one, pytest.raises(AssertionError, match="no port"):
        one.do(block("echo no port > head.log; false"))
