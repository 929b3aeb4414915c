"""Tables agree with the model within one per cent (decode) or half of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.step_tables import bilinear

MODEL = CostModel(load_device("ascend-910c"))
DECODE = MODEL.decode_table()
PREFILL = MODEL.prefill_table()
WITHIN = 0.005
WITHIN_DECODE = 0.01
"""A bound of the step changes inside some cells: 0.7 % at most among 70,000 random loads."""


@given(st.integers(1, 72), st.floats(1, 40_000), st.floats(0.2, 1.0))
def test_decode(requests: int, context: float, spread: float) -> None:
    load = DecodeLoad(requests, requests * context, requests * spread)
    answer = DECODE.seconds(requests, requests * context, requests * spread)
    assert answer == pytest.approx(MODEL.decode_step_s(load), rel=WITHIN_DECODE)


@given(st.floats(1, 400_000), st.floats(0, 60_000))
def test_prefill(tokens: float, seen: float) -> None:
    exact = MODEL.prefill_step_s(PrefillLoad(tokens, tokens * seen))
    assert PREFILL.seconds(tokens, tokens * seen) == pytest.approx(exact, rel=WITHIN)


def test_corners_are_exact_and_other_loads_computed() -> None:
    load = DecodeLoad(48, 48 * 64 * 3, 46.5)
    for _ in range(2):
        assert DECODE.seconds(48, 48 * 64 * 3, 46.5) == pytest.approx(MODEL.decode_step_s(load), rel=1e-12)
    assert DECODE.seconds(48, 200_000) == DECODE.seconds(48, 200_000, 48)
    assert DECODE.seconds(3.5, 14_000) == MODEL.decode_step_s(DecodeLoad(3.5, 14_000))
    assert DECODE.seconds(0, 0) == MODEL.decode_step_s(DecodeLoad(0, 0))
    assert PREFILL.seconds(0, 0) == MODEL.prefill_step_s(PrefillLoad(0, 0))
    c = bilinear(1.0, 2.0, 5.0, 11.0)
    values = [c[0] + c[1] * x + c[2] * y + c[3] * x * y for y in (0, 1) for x in (0, 1)]
    assert values == [1.0, 2.0, 5.0, 11.0]


def test_a_table_keeps_its_settings() -> None:
    single = MODEL.decode_table(dies=160, drafts=0, microbatch=False)
    load = DecodeLoad(40, 40 * 3000, None, 160, 0, False)
    assert single.seconds(40, 40 * 3000) == pytest.approx(MODEL.decode_step_s(load), rel=WITHIN)
    perfect = MODEL.prefill_table(dies=64, perfect_balance=True, microbatch=False)
    wanted = MODEL.prefill_step_s(PrefillLoad(100_000, 1e8, 64, 1.0, False))
    assert perfect.seconds(100_000, 1e8) == pytest.approx(wanted, rel=WITHIN)
