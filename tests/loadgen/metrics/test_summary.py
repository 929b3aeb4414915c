"""A whole run of hand-made records."""

from typing import Any

import pytest

from loadgen.metrics.repetitions import merge
from loadgen.metrics.summary import summarize
from loadgen.metrics.timeline import concurrency
from loadgen.metrics.verdict import GeneratorFacts, Identity, kept_rate
from loadgen.metrics.vllm_keys import flat
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.result import RunResult
from tests.loadgen.metrics.stamps import failed, record

RUN = [
    record([0.1], index=0, warmup=True, intended_s=0.0, released_s=0.0, started_s=0.0),
    record([2.0, 2.5, 3.0], index=1, cached_tokens=4),
    record([3.0, 4.0, 5.0], index=2, intended_s=2.0, released_s=2.0, started_s=2.0, cached_tokens=0),
    failed(index=3),
    record([2.0], index=4, outcome=RequestOutcome.CANCELLED, ended_s=2.0),
    record([], index=5, outcome=RequestOutcome.UNFINISHED, ended_s=60.0),
]


def summary(records: list[RequestRecord] = RUN, **facts: object) -> RunResult:
    """With an SLO that both successes keep."""
    return summarize(
        records,
        facts=GeneratorFacts(**facts),  # type: ignore[arg-type]
        slo={"ttft": 1.0},
        percentiles=[90],
        identity=Identity(url="http://h", model="m", settings={"a": 1}),
        warnings=["from elsewhere"],
    )


def test_the_window_the_rates_and_the_latencies() -> None:
    """First send 1.5, last end 5.25: 3.75 s; two successes, six tokens out, twenty in."""
    found = summary()
    assert found.duration_s == pytest.approx(3.75)
    assert found.drain_s == pytest.approx(3.25)
    assert (found.requests, found.warmup_requests) == (5, 1)
    assert found.outcomes == {"ok": 2, "rejected": 1, "cancelled": 1, "unfinished": 1}
    assert found.throughput.requests_per_s == pytest.approx(2 / 3.75)
    assert found.throughput.output_tokens_per_s == pytest.approx(6 / 3.75)
    assert found.throughput.input_tokens_per_s == pytest.approx(20 / 3.75)
    assert found.throughput.goodput_per_s == pytest.approx(2 / 3.75)
    assert found.slo is not None
    assert found.slo.attainment == pytest.approx(2 / 4)  # the one that was cut had waited for 59 s

    ttft = summary().metrics["ttft"]
    assert (ttft.count, ttft.mean) == (2, 1.0)
    assert set(ttft.percentiles) == {"50", "90", "99"}
    assert ttft.with_failures["99"] is None
    assert summary().metrics["lateness"].count == 5


def test_errors_cache_tokens_and_warnings() -> None:
    found = summary(interrupted=True, lost_workers=[1])
    [error] = found.errors
    assert (error.outcome, error.status, error.count, error.example) == ("rejected", 429, 1, "full")
    assert found.cache is not None
    assert found.cache.cached_tokens == 4
    assert found.cache.hit_share == pytest.approx(0.2)
    text = "\n".join(found.warnings)
    for words in ("1 of 5 requests failed", "1 requests had not ended", "only 2 requests", "from elsewhere", "worker"):
        assert words in text

    odd = [record([2.0, 3.0], output_tokens=None), record([2.0], input_tokens=20)]
    text = "\n".join(summary(odd).warnings)
    assert "1 responses had no usage" in text
    assert "1 prompts had other lengths" in text
    assert "no request succeeded" in "\n".join(summary([failed()]).warnings)

    words = "1 successful answers have no value for one of the SLOs"
    assert not any(words in warning for warning in summary().warnings)
    assert any(words in warning for warning in summary([*RUN, record([], index=6)]).warnings)


def test_concurrency_is_exact() -> None:
    """Open from 0 to 2, from 1 to 3, from 2 to 4: the end at 2 precedes the start at 2."""
    spans = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)]
    found = concurrency([record(started_s=begin, ended_s=end) for begin, end in spans])
    assert found.peak == 2
    assert found.mean(0.0, 4.0) == pytest.approx(6 / 4)
    assert found.mean(1.0, 3.0) == pytest.approx(2)
    assert found.mean(3.0, 3.0) == 0.0
    assert found.longest_above(0.9) == (1.0, 3.0)

    assert concurrency([]).longest_above(0.9) == (0.0, 0.0)
    assert concurrency([record(started_s=1.0, ended_s=1.0)]).longest_above(0.9) == (0.0, 0.0)
    # An idle minute between the warm-up and the only request does not dilute the mean.
    warm = record([0.5], warmup=True, started_s=0.0, ended_s=0.5)
    alone = summary([warm, record([61.0], started_s=60.0, ended_s=62.0)])
    assert alone.mean_concurrency == pytest.approx(1.0)


def test_steady_state_bears_a_short_dip_and_no_long_one_of_short_steps() -> None:
    """Ten requests for 5 s; then for 90 s 4 or 5 of them, changing each 20 ms; then ten again for 5 s."""
    ten = [record(started_s=begin, ended_s=begin + 5.0) for begin in [0.0] * 10 + [95.0] * 10]
    four = [record(started_s=5.0, ended_s=95.0) for _ in range(4)]
    flicker = [record(started_s=5 + 0.04 * at, ended_s=5.02 + 0.04 * at) for at in range(2250)]
    assert concurrency(ten + four + flicker).longest_above(0.9) == (0.0, 5.0)
    spans = [(0.0, 50.0), (0.0, 20.0), (20.1, 50.0)]
    assert concurrency([record(started_s=begin, ended_s=end) for begin, end in spans]).longest_above(0.9) == (0.0, 50.0)


def test_the_timeline_and_the_steady_state() -> None:
    """Three tokens in the first bin, both ends in their own."""
    found = summary([record([0.1, 0.3], started_s=0.0, ended_s=1.5, output_tokens=3), failed(started_s=1.4)]).timeline
    assert [point.t_s for point in found] == [0.0, 0.5, 1.0, 1.5]
    assert [point.output_tokens for point in found] == [3, 0, 0, 0]
    assert [point.finished for point in found] == [0, 0, 0, 1]
    assert [point.failed for point in found] == [0, 0, 0, 1]
    assert found[3].ttft_p50_s == pytest.approx(-0.9)  # due at 1.0, as all of these

    found = summary([record([], started_s=0.0, ended_s=1.25, output_tokens=3)]).timeline
    assert [point.output_tokens for point in found] == [0, 0, 3]

    many = [
        record([0.25 + at, 0.5 + at], index=at, intended_s=at, released_s=at, started_s=float(at), ended_s=at + 1.0)
        for at in range(20)
    ]
    whole = summary(many)
    assert whole.steady_state is not None
    assert whole.steady_state.requests == 20
    assert whole.steady_state.requests_per_s == pytest.approx(1.0, rel=0.1)
    assert sum(point.sent for point in whole.timeline) == 20
    assert sum(point.output_tokens for point in whole.timeline) == 40
    assert whole.peak_concurrency == 1

    # Ten start together; four of them fail.
    together: dict[str, Any] = {"intended_s": 0.0, "released_s": 0.0, "started_s": 0.0}
    fine = [record([1.0, 2.0], index=at, ended_s=3.0 + (at > 0), **together) for at in range(6)]
    steady = summary([*fine, *(failed(index=at, ended_s=5.0, **together) for at in range(6, 10))]).steady_state
    assert steady is not None
    assert steady.requests == 10
    assert steady.metrics["ttft"].with_failures == {"50": 1.0, "90": None, "99": None}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"cpu_share": 0.9}, "used 90% of a core"),
        ({"loop_lag_p99_s": 0.02}, "timer fired 20.0 ms late"),
        ({"starved_s": 1.0}, "slots stood free"),
        ({"late_digests": 3}, "3 responses arrived faster"),
        ({"offered_per_s": 10.0}, "only"),
    ],
)
def test_the_generator_is_the_bottleneck(facts: dict[str, float], words: str) -> None:
    assert not summary(PROMPT, offered_per_s=1.0).generator.is_bottleneck
    generator = summary(PROMPT, **facts).generator
    assert generator.is_bottleneck
    assert words in generator.reasons[0]


PROMPT = [record([at + 0.5], intended_s=at, released_s=at, started_s=float(at), ended_s=at + 1.0) for at in range(4)]
NO_CORE = {"late_s": 2.0, "denied_s": 1.9, "cores": 2, "others_cores": 1.9, "stolen_cores": 0.05}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"loop_lag_p99_s": 0.02, **NO_CORE}, "timer fired 20.0 ms late"),
        ({"late_digests": 3, **NO_CORE}, "3 responses arrived faster"),
        ({"offered_per_s": 10.0, **NO_CORE}, "only"),
        ({"starved_s": 1.0, "drawing_cpu_s": 0.2, "drawing_waited_s": 0.8}, "slots stood free"),
    ],
)
def test_a_generator_without_a_core_blames_the_machine(facts: dict[str, float], words: str) -> None:
    generator = summary(PROMPT, **facts).generator
    assert generator.machine_was_busy
    assert not generator.is_bottleneck
    assert generator.reasons == []
    assert words in generator.machine_reasons[0]


def test_who_had_the_cores_is_told() -> None:
    last = summary(PROMPT, loop_lag_p99_s=0.02, **NO_CORE).generator.machine_reasons[-1]
    assert "used 1.90 of 2 cores, and the host of this virtual machine took 0.05" in last
    unknown = summary(PROMPT, loop_lag_p99_s=0.02, late_s=1.0, denied_s=1.0).generator.machine_reasons[-1]
    assert unknown == "what helps: leave the generator a core, or run it on another machine"


@pytest.mark.parametrize(
    "facts",
    [
        {"cpu_share": 0.9, "loop_lag_p99_s": 0.02, **NO_CORE},  # it filled a core, independent of other load
        {"loop_lag_p99_s": 0.02, **NO_CORE, "denied_s": 0.1},  # cores were busy, and it did not have to wait for them
        {"starved_s": 1.0, "drawing_cpu_s": 0.8, "drawing_waited_s": 0.2},
    ],
)
def test_others_on_the_machine_are_no_excuse(facts: dict[str, float]) -> None:
    generator = summary(PROMPT, **facts).generator
    assert generator.is_bottleneck
    assert not generator.machine_was_busy


def test_late_sends_and_rates_that_need_not_be_kept() -> None:
    late = [record([at + 0.5], intended_s=at, released_s=at, started_s=at + 0.2) for at in range(40)]
    assert "left 200.0 ms late" in summary(late, offered_per_s=1.0).generator.reasons[0]
    capped = [
        record([2.0 * at + 0.5], intended_s=at, released_s=2.0 * at, started_s=2.0 * at, ended_s=2.0 * at + 2)
        for at in range(40)
    ]
    assert not summary(capped, offered_per_s=1.0, cap=1).generator.is_bottleneck

    assert kept_rate(summary(PROMPT, offered_per_s=1.0).generator)
    assert not kept_rate(summary(PROMPT, offered_per_s=10.0).generator)
    assert kept_rate(summary(PROMPT, mode_closed=True).generator)
    for early in ({"interrupted": True}, {"lost_workers": [0]}):
        assert not summary(PROMPT, offered_per_s=10.0, **early).generator.is_bottleneck
    generator = summary(PROMPT, offered_per_s=1.0, **NO_CORE).generator
    assert not generator.is_bottleneck
    assert not generator.machine_was_busy
    assert generator.denied_share == pytest.approx(0.95)


def test_warnings_of_clocks_and_their_order() -> None:
    slept = [(0.0, 100.0, 5.0), (1.0, 111.0, 16.0)]
    starts = [one.split()[:4] for one in summary(clocks=slept, interrupted=True).warnings]
    assert starts[0] == ["the", "machine", "slept", "for"]
    assert starts[1] == ["the", "run", "was", "interrupted;"]
    assert starts[-1] == ["from", "elsewhere"]
    assert summary([failed(index=1)]).warnings[0].startswith("no request succeeded")

    steady = [(0.0, 100.0, 5.0), (1.0, 101.0, 6.0)]
    assert summary(clocks=steady).generator.clock_warnings == []
    [told] = summary(clocks=slept).generator.clock_warnings
    assert "slept for 10.0 s" in told
    [stepped] = summary(clocks=[(0.0, 100.0, 5.0), (1.0, 98.0, 6.0)]).generator.clock_warnings
    assert "set by -3.0 s" in stepped


def test_repetitions() -> None:
    runs = [summary(), summary([record([2.0 + shift, 3.0]) for shift in (0.0, 0.5)])]
    found = merge(runs, [RUN, [record([2.0 + shift, 3.0]) for shift in (0.0, 0.5)]])
    assert found.requests == 7
    assert found.metrics["ttft"].count == 4
    assert found.metrics["ttft"].ci95 is not None
    assert [one.means["ttft"] for one in found.repetitions] == [pytest.approx(1.0), pytest.approx(1.25)]
    assert found.slo is not None
    assert (found.slo.good, found.slo.counted) == (3, 6)
    assert found.outcomes["ok"] == 4
    assert found.errors[0].count == 1

    alone = merge([summary()], [RUN])
    assert alone.metrics["ttft"].ci95 == summary().metrics["ttft"].ci95
    nothing = [failed()]
    found = merge([summary(nothing), summary()], [nothing, RUN])
    assert set(found.metrics["ttft"].percentiles) == {"50", "90", "99"}
    assert found.metrics["ttft"].ci95 is None


def keys(result: RunResult, runs: list[list[RequestRecord]], **changes: Any) -> dict[str, Any]:
    """Keys of vLLM's flat file."""
    usual: dict[str, Any] = {
        "percentile_metrics": [], "percentiles": [], "detailed": False, "request_rate": None, "burstiness": 1.0,
        "max_concurrency": None, "num_prompts": 5, "backend": "openai", "tokenizer": None, "date": "",
    }  # fmt: skip
    return flat(result, runs, **(usual | changes))


def test_vllms_keys_and_their_peaks() -> None:
    """vLLM counts from the actual send and reports milliseconds."""
    names = ["ttft", "tpot", "itl", "e2el", "client_queue_time", "unknown"]
    found = keys(summary(), [RUN], percentile_metrics=names, percentiles=[99], detailed=True, max_concurrency=4)
    assert found["mean_ttft_ms"] == pytest.approx(750)  # 0.5 s and 1.0 s from the send
    assert found["mean_tpot_ms"] == pytest.approx(750)  # 0.5 s and 1.0 s
    assert found["median_itl_ms"] == pytest.approx(750)
    assert found["mean_e2el_ms"] == pytest.approx(2250)  # 1.5 s and 3.0 s
    assert found["mean_client_queue_time_ms"] == pytest.approx(125)
    assert found["p99_ttft_ms"] == pytest.approx(995)
    assert (found["completed"], found["failed"], found["request_rate"]) == (2, 3, "inf")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    assert found["output_throughput"] == pytest.approx(6 / 3.75)
    assert found["max_concurrent_requests"] == summary().peak_concurrency == 4  # failures were open, too
    assert len(found["ttfts"]) == len(found["errors"]) == 5

    # Repetitions start at their own second 0: events at the same second of each were not concurrent.
    for runs in ([RUN], [RUN, RUN]):
        found = keys(merge([summary()] * len(runs), runs), runs)
        assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (3.0, 4)


def test_vllms_goodput_is_blind_to_waiting_and_a_peak_is_never_below_the_mean() -> None:
    """TTFT 1.0 s from the schedule, 0.5 s from the send; ten tokens in three chunks; 1.0 s in all."""
    records = [
        record([2.0, 2.25, 2.5], output_tokens=10, ended_s=2.5, server_times={"queue": 0.125}),
        failed(index=1, started_s=None, ended_s=2.0),
    ]
    result = summarize(
        records, facts=GeneratorFacts(), slo={"ttft": 0.75, "e2e": 1.25}, percentiles=[50], identity=Identity()
    )
    found = keys(result, [records], detailed=True, request_rate=2.0, burstiness=float("inf"), num_prompts=2)
    assert result.throughput.goodput_per_s == 0.0
    assert found["request_goodput"] == pytest.approx(1.0)
    assert found["max_output_tokens_per_s"] == found["output_throughput"] == pytest.approx(10)  # not its two chunks
    assert found["max_concurrent_requests"] == 1
    assert found["latencies"] == [1.0, 0.0]
    assert found["start_times"] == [1.5, 0.0]
    assert found["server_queue_times"] == [0.125, None]
    assert found["server_ttfts"] == [None, None]
    assert found["errors"] == ["", "full"]
    assert (found["request_rate"], found["burstiness"]) == (2.0, "inf")
