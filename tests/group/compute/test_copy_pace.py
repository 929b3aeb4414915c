"""The pace of copies: no interval has more bytes than the rate, plus one piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ExpertError
from serving.group.compute.slot_mover import CopyPace


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 3)), min_size=1, max_size=30), st.floats(1, 1000))
def test_the_rate_holds_over_every_stretch(pieces: list[tuple[int, float]], rate: float) -> None:
    now, copied = 0.0, list[tuple[float, int]]()

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    pace = CopyPace(rate, wait, lambda: now)
    for nbytes, pause in pieces:
        now += pause
        copied.append((now, nbytes))
        pace(nbytes)
    for first in range(len(copied)):
        for last in range(first + 1, len(copied)):
            moved = sum(nbytes for _, nbytes in copied[first:last])
            assert moved / rate <= (copied[last][0] - copied[first][0]) * (1 + 1e-9) + 1e-6


def test_a_copy_that_is_given_up_ends() -> None:
    pace = CopyPace(1e6, lambda seconds: True)
    with pytest.raises(ExpertError, match="abandoned"):
        pace(10)
