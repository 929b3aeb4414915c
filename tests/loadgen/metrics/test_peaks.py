"""No peak lies below the mean of the same thing, in hand-made runs of any shape."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.facts import GeneratorFacts, Identity
from loadgen.metrics.summary import summarize
from loadgen.metrics.vllm_keys import flat
from loadgen.record import RequestRecord
from loadgen.result import RunResult
from loadgen.run_report.run_charts import time_charts
from tests.loadgen.metrics.stamps import record

_ROUNDING = 1.001
_WHOLE_TOKENS_PER_S = 0.5 / 0.25
"""Each bin's tokens are rounded, and the shortest of several bins lasts a quarter of a second."""


@st.composite
def _runs(draw: st.DrawFn) -> list[RequestRecord]:
    """Requests that begin within some seconds, take 10 ms to 3 s, and stream or do not."""
    records = []
    for index in range(draw(st.integers(1, 12))):
        begin = draw(st.floats(0.0, draw(st.sampled_from([0.1, 4.0]))))
        lasts = draw(st.floats(0.01, 3.0))
        chunks = [begin + lasts * part for part in sorted(draw(st.lists(st.floats(0.0, 1.0), max_size=5)))]
        records.append(
            record(
                chunks,
                index=index,
                intended_s=begin,
                released_s=begin,
                started_s=begin,
                ended_s=begin + lasts,
                output_tokens=draw(st.integers(max(1, len(chunks)), 40)),
            )
        )
    return records


@given(_runs())
def test_of_any_run(records: list[RequestRecord]) -> None:
    result = summarize(records, facts=GeneratorFacts(), slo=None, percentiles=[50], identity=Identity())
    flat_keys = flat(
        result,
        [records],
        percentile_metrics=[],
        percentiles=[],
        detailed=False,
        request_rate=None,
        burstiness=1.0,
        max_concurrency=None,
        num_prompts=len(records),
        backend="openai",
        tokenizer=None,
        date="",
    )
    check_peaks(result, flat_keys)
    assert sum(point.sent for point in result.timeline) == len(records)
    assert sum(point.finished for point in result.timeline) == len(records)


def check_peaks(result: RunResult, flat_keys: dict[str, Any]) -> None:
    """Peaks of the flat keys, the time line, and its charts, each beside the mean."""
    rates = result.throughput
    assert flat_keys["max_output_tokens_per_s"] >= rates.output_tokens_per_s
    assert flat_keys["max_concurrent_requests"] >= result.mean_concurrency / _ROUNDING
    assert max(point.open_peak or 0 for point in result.timeline) == result.peak_concurrency
    charts = {chart.id: chart for chart in time_charts(result)}
    assert _highest(charts["tokens"].lines[0].values) >= rates.output_tokens_per_s / _ROUNDING - _WHOLE_TOKENS_PER_S
    assert _highest(charts["rates"].lines[1].values) >= rates.requests_per_s / _ROUNDING
    mean, peak = (_highest(line.values) for line in charts["running"].lines)
    assert result.peak_concurrency == peak >= mean >= result.mean_concurrency / _ROUNDING


def _highest(values: list[float | None]) -> float:
    return max(value or 0.0 for value in values)
