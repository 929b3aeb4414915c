"""Start and end of migration rounds."""

import pytest

from serving.kvpool.core.migration_plan import DRAIN_RETRY_S, RETRY_S, ROUND_S, next_round, round_end


def test_a_round_ends_in_time_to_look_at_the_ring_again_or_when_the_server_is_gone() -> None:
    assert round_end(100.0) == 100.0 + ROUND_S
    assert round_end(100.0, 150.0) == 150.0


@pytest.mark.parametrize(
    ("left", "leave_by", "again"),
    [
        (0, None, None),
        (0, 150.0, None),
        (1, None, 100.0 + RETRY_S),
        (1, 150.0, 100.0 + DRAIN_RETRY_S),
        (1, 100.0 + DRAIN_RETRY_S, None),
    ],
)
def test_another_round_follows_if_something_is_left_and_there_is_time(
    left: int, leave_by: float | None, again: float | None
) -> None:
    assert next_round(left, 100.0, leave_by) == again
