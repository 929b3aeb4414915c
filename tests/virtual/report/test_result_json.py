"""The JSON: same input, same bytes; only valid JSON values; no real time."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.virtual.report.latencies import Slo
from serving.virtual.report.result_json import SCHEMA, plain, result_json, write_json
from serving.virtual.report.summary import summarize
from tests.virtual.report.made import made_result

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def refuse(constant: str) -> None:
    """Raise for NaN and Infinity, which JSON does not have."""
    pytest.fail(f"{constant} in JSON")


def test_same_result_same_bytes_whatever_the_speed_or_the_order_of_mappings() -> None:
    one, other = made_result(300), made_result(300)
    turned = dict(reversed(one.decision_counts.items()))
    other = dataclasses.replace(other, wall_s=99.0, decision_counts=turned)
    assert result_json(one, summarize(one, SLO), requests=True) == result_json(
        other, summarize(other, SLO), requests=True
    )


def test_what_is_in_it_and_in_that_of_a_run_without_requests() -> None:
    result = made_result(200)
    found = json.loads(result_json(result, summarize(result, SLO), requests=True), parse_constant=refuse)
    assert (found["schema"], found["seed"]) == (SCHEMA, 7)
    assert "wall_s" not in json.dumps(found)
    assert found["summary"]["goodput"]["slo"] == {"ttft_s": 2.0, "tpot_s": 0.05}
    assert found["faults"][2]["until_s"] is None
    assert len(found["timeline"]["step_s"]) == len(result.timeline)
    rejected = found["requests"]["outcome"].index(1)
    assert found["requests"]["first_token_s"][rejected] is None
    assert found["requests"]["prompt_tokens"] == list(result.requests.prompt_tokens)
    result = made_result(0, points=0, faults=False)
    found = json.loads(result_json(result, summarize(result, SLO), requests=True), parse_constant=refuse)
    assert found["summary"]["ttft_s"]["p50"] is None
    assert found["summary"]["goodput"]["attainment"] is None
    assert found["requests"]["arrival_s"] == []
    result = made_result(20)
    assert "requests" not in json.loads(result_json(result, summarize(result)))


@given(st.floats())
def test_floats_keep_nine_digits(value: float) -> None:
    found = plain(value)
    if math.isfinite(value):
        assert found == pytest.approx(value, rel=1e-8, abs=0.0)
        assert float(f"{found:.9g}") == found
    else:
        assert found is None


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = made_result(5)
    with pytest.raises(ConfigError, match=r"cannot write .*No such file"):
        write_json(tmp_path / "no" / "result.json", result, summarize(result))
    write_json(tmp_path / "result.json", result, summarize(result))
    assert (tmp_path / "result.json").read_bytes() == result_json(result, summarize(result))
