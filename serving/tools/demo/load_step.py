"""Step 5: eight users at once, by `loadgen`, which is independent of this system."""

from pathlib import Path
from typing import Any

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of
from serving.tools.demo.children import read_result_file, run_module
from serving.tools.demo.stage import Stage, Step, StepReport

USERS = 8
DURATION = "8s"
_METRICS = {"ttft": "first token", "tpot": "each further token", "e2e": "whole answer"}
_PERCENTILES = ("50", "90", "95", "99")


def run(stage: Stage) -> StepReport:
    """Run `loadgen`, which prints its own table. Raises: StepError."""
    folder = stage.folder / "load"
    words = [
        "run",
        "--url",
        stage.system.url,
        "--concurrency",
        str(USERS),
        "--duration",
        DURATION,
        "--out",
        str(folder),
    ]
    run_module(stage.narrator, "loadgen", words)
    return load_report(read_result_file(folder / "result.json")["loadgen"])


def load_report(result: dict[str, Any]) -> StepReport:
    """The findings. Args: result: `RunResult` as JSON."""
    rates, generator = result["throughput"], result["generator"]
    failed = sum(count for name, count in result["outcomes"].items() if name not in ("ok", "unfinished"))
    speed = numbers.significant(rates["output_tokens_per_s"])
    kept_up = "loadgen kept up"
    if generator["is_bottleneck"]:
        kept_up = "loadgen itself was the limit"
    elif generator["machine_was_busy"] or generator["clock_warnings"]:
        kept_up = "the machine was too busy for exact times"
    return StepReport(
        f"{USERS} users got {speed} tokens/s together, {numbers.significant(rates['requests_per_s'])} answers a "
        f"second; {kept_up}.",
        ("output, eight users", f"{speed} tokens/s"),
        (f"{result['requests']:,} requests, {failed:,} failed", kept_up),
        problem=f"{failed:,} of {result['requests']:,} requests failed" if failed else "",
        tables=(_table(result["metrics"]),),
        files=(("report of the load test", Path("load/report.html")),),
    )


def _table(metrics: dict[str, Any]) -> Table:
    found = {name: metrics[name] for name in _METRICS if metrics.get(name, {}).get("count")}
    shown = [one for one in _PERCENTILES if all(one in metric["percentiles"] for metric in found.values())]
    rows = [
        [_METRICS[name], numbers.count(metric["count"]), numbers.duration(metric["mean"])]
        + [numbers.duration(metric["percentiles"][one]) for one in shown]
        for name, metric in found.items()
    ]
    return table_of(columns("latency", "count", "mean", *(f"p{one}" for one in shown)), rows)


STEP = Step(
    "load",
    "Load it",
    f"{USERS} users, each sends the next request as soon as the last response is complete, for {DURATION}. `loadgen` "
    "speaks to any OpenAI-compatible server, counts latency from the scheduled send time, and reports when it was "
    "the bottleneck itself.",
    (f"loadgen run --concurrency {USERS} --duration {DURATION} --out closed",),
    run,
)
