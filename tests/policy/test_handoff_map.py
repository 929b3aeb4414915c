"""The decode-to-prefill rank map."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.policy.handoff_map import HandoffMap


def test_the_published_example() -> None:
    example = HandoffMap(prefill_tp_size=32, decode_tp_size=1, decode_dp_size=320)
    assert (example.ratio, example.group_size) == (32, 10)
    assert [example.prefill_rank(rank) for rank in (0, 9, 10, 19, 310, 319)] == [0, 0, 1, 1, 31, 31]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_every_prefill_rank_serves_equally_many(ratio: int, group: int, decode_tp: int) -> None:
    handoff = HandoffMap(ratio * decode_tp, decode_tp, ratio * group)
    served = Counter(handoff.prefill_rank(dp, tp) for dp in range(ratio * group) for tp in range(decode_tp))
    assert served == dict.fromkeys(range(ratio * decode_tp), group)


@pytest.mark.parametrize(
    ("sizes", "message"), [((0, 1, 1), "at least 1"), ((4, 3, 8), "must divide"), ((8, 2, 6), "multiple of")]
)
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HandoffMap(*sizes)


@pytest.mark.parametrize(("dp", "tp"), [(-1, 0), (8, 0), (0, 2), (0, -1)])
def test_a_rank_that_does_not_exist_is_refused(dp: int, tp: int) -> None:
    with pytest.raises(ConfigError, match="no decode rank"):
        HandoffMap(4, 2, 8).prefill_rank(dp, tp)
