"""Lateness of open-loop sends: how long after its scheduled moment a request begins to leave.

One worker sends at a constant rate to the built-in server in paced mode, 20 ms to the first token and then 100
tokens/s per stream, so that at 200 requests/s about 50 streams of tokens arrive between the sends. Each repeat is a
run of its own. Beside the requests' lateness stands the lag of a timer in the worker that does nothing else, and a
bare process that sleeps until the same moments: what the machine gives to anybody.
"""

import time

from loadgen.driver.fleet import Fleet
from loadgen.driver.health import percentile
from loadgen.driver.settings import DriveSettings
from loadgen.endpoint import Endpoint
from loadgen.plan import Conversation, LoadJob, Turn
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.selftest.process import BlastServer, start_blast_server
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

GOAL_MS = 2.0
OUTPUT_TOKENS = 24
PROMPT_WORDS = 1_000


def run(server: BlastServer, rate_per_s: float, seconds: float, workers: int) -> tuple[list[float], float, float]:
    """Lateness of each request [ms], ascending; the workers' p99 timer lag [ms]; their CPU share."""
    endpoint = Endpoint(base_url=server.url, path="/v1/completions", model=server.model)
    turn = Turn(prompt="word " * PROMPT_WORDS, output_tokens=OUTPUT_TOKENS)
    count = int(rate_per_s * seconds)
    jobs = (LoadJob(index=n, due_s=n / rate_per_s, conversation=Conversation(turns=[turn])) for n in range(count))
    records: list[RequestRecord] = []
    done = Fleet(DriveSettings(endpoint=endpoint, workers=workers)).run(
        jobs, on_records=records.extend, on_progress=lambda _: None
    )
    if done.interrupted or any(record.outcome is not RequestOutcome.OK for record in records):
        raise SystemExit(f"not every request succeeded: {done.problems or [r.error for r in records if r.error][:1]}")
    lateness_ms = sorted(((record.started_s or 0.0) - record.intended_s) * 1e3 for record in records)
    lag_ms = max(health.loop_lag_p99_s for health in done.workers) * 1e3
    return lateness_ms, lag_ms, max(health.cpu_share for health in done.workers)


def bare_sleep_ms(rate_per_s: float, seconds: float) -> list[float]:
    """Lateness of a process that only sleeps [ms], ascending."""
    begin = time.monotonic()
    late = []
    for number in range(int(rate_per_s * seconds)):
        due = begin + number / rate_per_s
        time.sleep(max(0.0, due - time.monotonic()))
        late.append((time.monotonic() - due) * 1e3)
    return sorted(late)


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_loadgen_lateness", __doc__, repeats=5)
    parser.add_argument("--rate", type=float, default=200.0, help="requests per second (default 200)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run (default 10)")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    found = conditions(
        None, rate_per_s=args.rate, run_s=args.seconds, workers=args.workers, output_tokens=OUTPUT_TOKENS
    )
    show_conditions(found)
    seen: list[tuple[list[float], float, float]] = []
    bare: list[list[float]] = []
    for _ in range(args.repeats):
        with start_blast_server("paced", tokens_per_s=100, ttft_s=0.02) as server:
            seen.append(run(server, args.rate, args.seconds, args.workers))
        bare.append(bare_sleep_ms(args.rate, min(args.seconds, 5.0)))
        progress(f"lateness p99 {percentile(seen[-1][0], 99):.3f} ms, bare sleep {percentile(bare[-1], 99):.3f} ms")
    figures = [
        Figure("lateness p50", "ms", tuple(percentile(late, 50) for late, _, _ in seen)),
        Figure("lateness p99", "ms", tuple(percentile(late, 99) for late, _, _ in seen), goal=GOAL_MS),
        Figure("lateness largest", "ms", tuple(late[-1] for late, _, _ in seen)),
        Figure("timer lag in the worker p99", "ms", tuple(lag for _, lag, _ in seen)),
        Figure("bare sleep p99", "ms", tuple(percentile(late, 99) for late in bare)),
        Figure("CPU share of the worker", "cores", tuple(cpu for _, _, cpu in seen)),
    ]
    report("bench_loadgen_lateness", found, figures)


if __name__ == "__main__":
    main()
