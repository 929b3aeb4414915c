"""A profile compared with rows outside its fit: the printed error is correct, and the stated one contains it."""

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.engine_fit import judge
from hardware.cost.engine_profile import ENGINE_FOLDER, load_engine
from hardware.cost.measured_file import parse_measured, read_measured

DEVICE = load_device("ascend-910c")


@pytest.mark.parametrize("name", ["vllm-ascend", "sglang-ascend"])
def test_rows_that_were_fitted_one_by_one_have_no_error(name: str) -> None:
    rows = judge(CostModel(DEVICE, engine=load_engine(name)), read_measured(ENGINE_FOLDER / f"{name}.csv").rows)
    assert [one.row.phase for one in rows] == ["decode", "prefill"]
    for one in rows:
        assert one.error == pytest.approx(0, abs=1e-4)
        assert one.held


def test_whether_a_row_is_held_depends_on_what_was_stated() -> None:
    held_back = read_measured(ENGINE_FOLDER / "sglang-ascend.held-back.csv").rows
    rows = judge(CostModel(DEVICE, engine=load_engine("sglang-ascend")), held_back)
    assert len(rows) == 6
    assert all(one.held for one in rows)
    assert sorted(abs(one.error) for one in rows)[3] < 0.11, "four of six"
    twice = parse_measured("phase,dies,batch_per_npu,context_tokens,tpot_ms\ndecode,320,96,4096,150", "twice")
    (one,) = judge(CostModel(DEVICE), twice.rows)
    assert one.predicted_s < one.measured_s / 2
    assert one.held is False
    row = parse_measured("phase,dies,batch_per_npu,context_tokens,tpot_ms\ndecode,144,96,4096,150", "h800")
    (one,) = judge(CostModel(load_device("h800"), engine=load_engine("vllm-ascend")), row.rows)
    assert one.held is (abs(one.error) <= one.trust.error)
    assert "was measured on ascend-910c" in one.trust.text
