"""The result of a run as written to `result.json`, key by key.

The file's top level carries the flat keys of `vllm bench serve` (milliseconds, vLLM's meaning: latency counted from the
actual send), so that scripts for these keep working. All other values are under the key `"loadgen"`: the
struct `RunResult` below, in seconds. Fields are only ever added within one schema version; a field that changes
meaning gets a new version.
"""

import msgspec

from loadgen.trace.jobs import JobFigures

SCHEMA = "loadgen-result/1"


class MetricDistribution(msgspec.Struct, kw_only=True):
    """One metric over the counted requests (or chunks).

    Attributes:
        unit: "s", "tokens" ...
        count: values that it is made of; 0 leaves every other field None or empty.
        percentiles: percentile as text ("50", "99.9") -> value; linear interpolation, exact.
        with_failures: the same percentiles where each failed request counts as infinitely late; None where a failure
            reaches that percentile. Empty for metrics that are no latency.
        curve: [percentile, value] pairs for plotting, ascending, denser towards 100.
        ci95: 95 % confidence interval of the mean, over repetitions if there are several, else over requests.
    """

    unit: str
    count: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    percentiles: dict[str, float] = {}
    with_failures: dict[str, float | None] = {}
    curve: list[tuple[float, float]] = []
    ci95: tuple[float, float] | None = None


class LengthStatistics(msgspec.Struct, kw_only=True):
    """Requested and sent lengths [tokens] of prompts, or of responses.

    Attributes:
        requests: measured ones whose length is known. shortened: of these, made to fit the model. lengthened: raised
            to the least that can be sent.
        asked_mean, asked_max: what the workload drew, after `--length-scale`. sent_mean, sent_max: what was sent; for
            answers the limit in the request, which the model may stay below. None if unknown.
    """

    requests: int
    shortened: int
    lengthened: int
    asked_mean: float
    asked_max: int
    sent_mean: float | None
    sent_max: int | None


class ErrorCount(msgspec.Struct, kw_only=True):
    """Number of occurrences of one error. `example` is its text, cut to one line."""

    outcome: str
    status: int
    count: int
    example: str


class Throughput(msgspec.Struct, kw_only=True):
    """Rates over the measured window [per second]; tokens of successful requests only."""

    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float | None = None


class SloResult(msgspec.Struct, kw_only=True):
    """Attainment of the SLOs: a request is good if it succeeded and kept every one of them.

    Attributes:
        targets: metric name ("ttft", "tpot", "e2e", "itl") -> limit [s].
        good: good requests. counted: successes, failures, and requests that were cut when they had missed an SLO
            already (deliberate cancels are not counted).
        attainment: good / counted. wilson95: its 95 % Wilson interval.
        each: metric name -> share of the counted requests that kept this limit.
        untestable: successful requests without one of the metrics (TPOT of one token, TTFT of a whole answer); they
        pass it and are counted separately.
    """

    targets: dict[str, float]
    good: int
    counted: int
    attainment: float
    wilson95: tuple[float, float]
    each: dict[str, float] = {}
    untestable: int = 0


class TextSample(msgspec.Struct, kw_only=True):
    """Starts of one prompt and of its response. `index`: of the request; tokens as the server counted them."""

    index: int
    prompt: str
    answer: str
    input_tokens: int | None = None
    output_tokens: int | None = None


class CacheUse(msgspec.Struct, kw_only=True):
    """Prompt tokens read from a cache, as reported by the server. `hit_share` = cached / input tokens of those."""

    reported_by: int
    cached_tokens: int
    input_tokens: int
    hit_share: float | None = None


class SteadyState(msgspec.Struct, kw_only=True):
    """The longest stretch with at least 90 % of peak concurrency, and the main metrics of requests started in it."""

    from_s: float
    to_s: float
    requests: int
    requests_per_s: float
    output_tokens_per_s: float
    metrics: dict[str, MetricDistribution] = {}


class TimelinePoint(msgspec.Struct, kw_only=True):
    """One bin of the run's time axis; counts per bin, `running` at its end, percentiles of requests finished in it.

    Attributes:
        width_s: the part of the bin between the first send and the last end: counts over this are its rates. None in
            results of older versions, as the next two.
        open_mean, open_peak: requests open at once: time average over `width_s`, exact maximum.
    """

    t_s: float
    width_s: float | None = None
    open_mean: float | None = None
    open_peak: int | None = None
    sent: int
    finished: int
    failed: int
    running: int
    output_tokens: int
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p99_s: float | None = None


class Generator(msgspec.Struct, kw_only=True):
    """How well the generator itself kept up.

    Attributes:
        workers: worker processes.
        cpu_share: largest CPU use of any worker, 1.0 = one core busy all the time.
        loop_lag_p99_s: how late a worker's own timer fired, 99th percentile over all workers.
        starved_s: time for which a slot was free and no prompt was ready, summed.
        offered_per_s / achieved_per_s: rate of the schedule, and rate at which requests really left. None in a closed
            loop.
        is_bottleneck: whether the results measure this program rather than the server, because it was overloaded.
        reasons: why, one line each. machine_was_busy: whether times were disturbed because the program had no core to
        run on. machine_reasons: how, one line each. denied_share: of the time by which the workers' timers were late,
        how much they had no core. None if none was. cores, others_cores, stolen_cores: of the machine: busy with other
        programs, and taken by the host of a virtual machine, as averages. None where the system does not report it, and
        in results of older versions. clock_warnings: the machine slept or its clock jumped during the run.
    """

    workers: int
    cpu_share: float
    loop_lag_p99_s: float
    starved_s: float = 0.0
    offered_per_s: float | None = None
    achieved_per_s: float | None = None
    is_bottleneck: bool = False
    reasons: list[str] = []
    machine_was_busy: bool = False
    machine_reasons: list[str] = []
    denied_share: float | None = None
    cores: int | None = None
    others_cores: float | None = None
    stolen_cores: float | None = None
    clock_warnings: list[str] = []


class Repetition(msgspec.Struct, kw_only=True):
    """Main figures of one of several repetitions of the same run; `means` by metric name [s]."""

    requests: int
    duration_s: float
    throughput: Throughput
    means: dict[str, float]
    p99: dict[str, float]
    attainment: float | None = None


class RunResult(msgspec.Struct, kw_only=True):
    """All of one run (or of its repetitions taken together).

    Attributes:
        schema: `SCHEMA`. version: of the package. started_at: ISO 8601, UTC. command: as typed.
        label: distinguishes this run from others of a sweep, such as "rate 4.0".
        url, model, endpoint: where the requests went.
        seed: repeats the run exactly. settings: every flag with its value.
        interrupted: stopped early by the user or by the loss of a worker; what is here is what was finished.
        duration_s: from the first send to the last end, warm-up excluded. drain_s: part of it after the last send.
        requests: measured ones sent. outcomes: `RequestOutcome` -> count. warmup_requests: left out.
        contradictions: successful answers that contradict the server's own usage, see `metrics.contradictions`.
        peak_concurrency, mean_concurrency: requests open at once: exact maximum, time average.
        metrics: name (see `metrics.definitions`) -> distribution.
        jobs: conversations of several turns; None if there were none.
        lengths: "input" and "output" -> requested and sent. turns_left_out: by all conversations together, because
            their history would not have fitted the model. samples: a few, unless disabled; none without `--out`. npus:
            of the server, from the user or from the server's own metrics; None if neither did. warnings: caveats for a
            reader of the results; one line each, the worst first. metadata: what the user attached.
    """

    schema: str = SCHEMA
    version: str = ""
    started_at: str = ""
    command: str = ""
    label: str = ""
    url: str = ""
    model: str = ""
    endpoint: str = ""
    seed: int = 0
    settings: dict[str, object] = {}
    interrupted: bool = False
    duration_s: float = 0.0
    drain_s: float = 0.0
    requests: int = 0
    warmup_requests: int = 0
    outcomes: dict[str, int] = {}
    contradictions: int = 0
    errors: list[ErrorCount] = []
    peak_concurrency: int = 0
    mean_concurrency: float = 0.0
    metrics: dict[str, MetricDistribution] = {}
    lengths: dict[str, LengthStatistics] = {}
    turns_left_out: int = 0
    throughput: Throughput
    slo: SloResult | None = None
    cache: CacheUse | None = None
    jobs: JobFigures | None = None
    steady_state: SteadyState | None = None
    generator: Generator
    timeline: list[TimelinePoint] = []
    samples: list[TextSample] = []
    npus: int | None = None
    repetitions: list[Repetition] = []
    warnings: list[str] = []
    metadata: dict[str, str] = {}


class SweepPoint(msgspec.Struct, kw_only=True):
    """One run of a sweep or search. `value`: the rate [per s] or the concurrency. `folder`: its own results."""

    value: float
    folder: str
    result: RunResult
    aborted: str = ""


class SweepResult(msgspec.Struct, kw_only=True):
    """Several runs that differ in one thing, as in `sweep.json`.

    Attributes:
        parameter: "rate" or "concurrency". points: ascending by value.
        best: largest value that held the SLOs (saturation search, or a sweep with SLOs); None if none did.
        first_failed: smallest value that did not. explanation: one line.
    """

    schema: str = "loadgen-sweep/1"
    parameter: str
    points: list[SweepPoint] = []
    best: float | None = None
    first_failed: float | None = None
    explanation: str = ""
