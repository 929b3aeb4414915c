"""Step 6: the same code in virtual time, as a supernode of 384 NPUs under load."""

from pathlib import Path
from typing import Any

from loadgen.report import numbers
from loadgen.report.chart import Axis, Line, LineChart, tidy
from loadgen.report.table import Table, columns, table_of
from serving.shipped import SHIPPED
from serving.tools.demo.children import read_result_file, run_module
from serving.tools.demo.stage import Stage, Step, StepReport

CONFIG = "cloudmatrix384.toml"
LOAD = "--poisson 120 --prompt 2048 --output 1000 --reuse 0.5 --duration 1min"
"""The load of README.md."""


def run(stage: Stage) -> StepReport:
    """Run `cloudmatrix simulate`, which prints its own tables. Raises: StepError."""
    folder = stage.folder / "simulate"
    run_module(
        stage.narrator,
        "serving.cli",
        ["simulate", "--config", str(SHIPPED / CONFIG), *LOAD.split(), "--out", str(folder)],
    )
    return simulate_report(read_result_file(folder / "result.json"))


def simulate_report(result: dict[str, Any]) -> StepReport:
    """The findings. Args: result: `result.json` of a simulation."""
    summary, npus = result["summary"], result["config"]["NPUs"]
    finished, count = summary["outcomes"]["finished"], summary["requests"]
    speed = numbers.significant(summary["throughput"]["output_tokens_per_s"])
    per_npu = numbers.significant(summary["throughput"]["output_tokens_per_npu_s"])
    lasted = numbers.clock(summary["duration_s"])
    return StepReport(
        f"{lasted} of a supernode with {npus} NPUs: {result['name']} generates {speed} tokens/s, {per_npu} for each "
        f"NPU in use; the median first token comes after {numbers.duration(summary['ttft_s']['p50'])}.",
        (f"{result['name']} on {npus} NPUs", f"{speed} tokens/s"),
        (f"{finished:,} of {count:,} requests finished", f"{lasted} of virtual time"),
        problem="" if finished == count else f"{count - finished:,} of {count:,} requests did not finish",
        tables=(_latencies(summary), _pools(summary)),
        charts=(_chart(result),),
        files=(("report of the simulation", Path("simulate/report.html")),),
    )


def _latencies(summary: dict[str, Any]) -> Table:
    parts = (("first token", "ttft_s"), ("each further token", "tpot_s"), ("whole answer", "e2e_s"))
    rows = [
        [title, numbers.count(summary[name]["count"])]
        + [numbers.duration(summary[name][one]) for one in ("mean", "p50", "p90", "p99")]
        for title, name in parts
    ]
    return table_of(columns("latency", "count", "mean", "p50", "p90", "p99"), rows)


def _pools(summary: dict[str, Any]) -> Table:
    rows = [
        [
            pool["name"],
            numbers.count(pool["instances"]),
            numbers.count(pool["peak_npus"]),
            numbers.share(pool["busy_share"]),
        ]
        for pool in summary["pools"]
    ]
    return table_of(columns("pool", "instances", "NPUs", "busy"), rows)


def _chart(result: dict[str, Any]) -> LineChart:
    timeline = result["timeline"]
    batch = [float(value) for value in timeline["decode_batch"]]
    return tidy(
        LineChart(
            id="supernode",
            title="Sequences that decode at once",
            x=Axis(unit="clock", low=0.0),
            y=Axis(unit="count", low=0.0),
            xs=[float(at) for at in timeline["at_s"]],
            lines=[Line(name="sequences", values=list(batch), color="violet", fill=True)],
        )
    )


STEP = Step(
    "simulate",
    "Think in supernodes",
    "The gateway, router, scheduler and ledgers that have just served you now run in virtual time: DeepSeek-R1 on 384 "
    "NPUs, 120 requests a second for a minute, by a cost model whose errors are stated row by row.",
    (f"cloudmatrix simulate --config deploy/{CONFIG} {LOAD}",),
    run,
    needs_system=False,
)
