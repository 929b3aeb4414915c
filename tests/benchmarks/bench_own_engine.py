"""Prediction of this machine's own engine: a profile fitted to 4 loads of the live system, judged by 8 others.

Starts `cloudmatrix serve` with one prefill and one decode instance of the bundled model, and sends twelve open-loop
loads (prompt and output length, rate; seeded Poisson arrivals), each several times: the same arrivals, other prompts.
`cost --fit`'s code makes a profile of the runs of four loads; virtual time then plays the arrivals of each load.
The noise floor of a load is the range of its runs' medians divided by their median.

  python -m tests.benchmarks.bench_own_engine --out /tmp/runs
  python -m tests.benchmarks.bench_own_engine --runs /tmp/runs          (predict again, measure nothing)
"""

import contextlib
import io
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hardware.cost.engine_fit import fit_engine
from hardware.cost.engine_profile import engine_text
from loadgen.cli.main import main as loadgen
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.run_folder import read_records
from serving.cli.cost_fit import measured_rows
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.simulation import cost_model
from tests.benchmarks.bench_live_agreement import virtual_rows
from tests.benchmarks.conditions import (
    ROOT,
    STORYTELLER,
    Figure,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.live_agreement.outcome import Row
from tests.benchmarks.served import AllCores

WITHIN, GOALS = 10.0, {"tpot": 7, "ttft": 6}
"""Largest error of a median [%], and how many of the eight loads should keep it."""
DIES = 2
"""Of each instance: a virtual NPU."""
SETTINGS = (
    f"model.path={STORYTELLER}",
    "kvcache.replicas=0",
    "decode.npus_per_instance=1",
    f"simulation.device={ROOT / 'examples' / 'cpu-device.toml'}",
    "simulation.drafts=0",
)
"""Besides those of deploy/small.toml."""


@dataclass(frozen=True, slots=True)
class Load:
    """Prompt and output length [tokens], requests per second, and whether the profile is fitted to it."""

    prompt: int
    output: int
    rate: float

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.prompt}+{self.output}@{self.rate:g}"

    @property
    def fitted(self) -> bool:
        """Half of the corners: each prompt, output and rate occurs twice."""
        return self in FITTED


LOADS = tuple(Load(*one) for one in itertools.product((64, 256, 512), (32, 96), (4.0, 12.0)))
FITTED = (Load(64, 32, 12.0), Load(64, 96, 4.0), Load(512, 32, 4.0), Load(512, 96, 12.0))


def config() -> ServeConfig:
    """Configuration of the live system; its `[simulation]` is used in virtual time alone."""
    return load_config(ROOT / "deploy" / "small.toml", settings=SETTINGS)


def measure(folder: Path, repeats: int, seconds: float, port: int) -> None:
    """Run all loads, and all again as often as wanted."""
    live = [one for one in SETTINGS if not one.startswith("simulation.")]
    sets = [word for one in (*live, "cluster.dashboard_port=0") for word in ("--set", one)]
    with AllCores(ROOT / "deploy" / "small.toml", *sets, port=port) as server:
        _send(server.url, folder / "warm-up", Load(300, 32, 8.0), 4.0)
        for repeat in range(repeats):
            progress(f"round {repeat + 1} of {repeats}")
            for load in LOADS:
                below = folder / ("fit" if load.fitted else "other")
                _send(server.url, below / f"{load.name}.{repeat + 1}", load, seconds)


def _send(url: str, out: Path, load: Load, seconds: float) -> None:
    """One run. No prompt begins as one of another run: cached blocks would be a load of another kind."""
    flags = ["run", "--url", url, "--request-rate", f"{load.rate:g}", "--num-prompts", str(round(load.rate * seconds))]
    flags += ["--input-len", str(load.prompt), "--output-len", str(load.output), "--seed", "7", "--prompt-kind", "ids"]
    flags += ["--tokenizer", str(STORYTELLER), "--cache-bust", out.name, "--ignore-eos", "--num-warmups", "2"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = loadgen([*flags, "--quiet", "--no-report", "--no-scrape", "--no-save-prompts", "--out", str(out)])
    if status:
        raise RuntimeError(f"the load generator ended with {status}:\n{said.getvalue()}")


@dataclass(frozen=True, slots=True)
class Judged:
    """One load's metric: the runs' medians and the predicted one [s]."""

    load: Load
    runs: tuple[float, ...]
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction [%]."""
        return 100 * (self.predicted / statistics.median(self.runs) - 1)

    @property
    def noise(self) -> float:
        """Range of the runs ÷ their median [%]."""
        return 100 * (max(self.runs) - min(self.runs)) / statistics.median(self.runs)


def judge(folder: Path) -> dict[str, list[Judged]]:
    """Fit, then predict every load. Returns: by metric."""
    plain = config()
    cost = cost_model(plain)
    measured = measured_rows(folder / "fit", DIES, cost.device.die.per_npu, flag="--runs")
    found = fit_engine(cost, measured.rows, name="own", title=measured.title)
    profile = folder / "own.toml"
    profile.write_text(engine_text(found.profile))
    print(profile.read_text())
    fitted = replace(plain, simulation=replace(plain.simulation, engine=str(profile)))
    judged: dict[str, list[Judged]] = {metric: [] for metric in GOALS}
    for load in LOADS:
        runs = [_sent(path) for path in sorted(folder.glob(f"*/{load.name}.*"))]
        predicted = virtual_rows(fitted, _trace(folder / "trace.csv", runs[0]))
        real = [[_row(one) for one in records] for records in runs]
        for metric, rows in judged.items():
            medians = tuple(_median(rows_of, metric) for rows_of in real)
            rows.append(Judged(load, medians, _median(predicted[-len(real[0]) :], metric)))
    return judged


def _sent(run: Path) -> list[RequestRecord]:
    records = sorted((one for one in read_records(run) if not one.warmup), key=lambda one: one.intended_s)
    if failed := [one for one in records if one.outcome is not RequestOutcome.OK]:
        raise RuntimeError(f"{run}: {len(failed)} requests failed, for example {failed[0].error}")
    return records


def _row(one: RequestRecord) -> Row:
    chunks = one.chunks()
    return Row.of(chunks[0] - one.intended_s, chunks[-1] - one.intended_s, one.output_tokens or 0, 0)


def _trace(path: Path, records: list[RequestRecord]) -> Path:
    """Arrivals and lengths of a run, for virtual time."""
    start = records[0].intended_s
    rows = (f"{one.intended_s - start:.6f},{one.input_tokens},{one.output_tokens}" for one in records)
    path.write_text("\n".join(("arrival_s,prompt_tokens,output_tokens", *rows)) + "\n")
    return path


def _median(rows: list[Row], metric: str) -> float:
    return statistics.median(getattr(row, f"{metric}_s") for row in rows)


def _figures(judged: dict[str, list[Judged]]) -> Iterator[Figure]:
    """Print each load, and sum up the loads outside the fit."""
    for metric, rows in judged.items():
        print(f"{metric.upper()} p50, ms: load (* fitted)  runs  predicted  error  range of the runs")
        for one in rows:
            runs = " ".join(f"{1e3 * run:7.3f}" for run in one.runs)
            name = f"{one.load.name:>12}{'*' * one.load.fitted:1}"
            print(f"  {name}  {runs}  {1e3 * one.predicted:7.3f}  {one.error:+6.1f} %  {one.noise:5.1f} %")
        others = [one for one in rows if not one.load.fitted]
        held = sum(abs(one.error) <= WITHIN for one in others)
        yield Figure(f"{metric.upper()}: loads within {WITHIN:g} %", "", (held,), GOALS[metric], at_most=False)
        yield Figure(f"{metric.upper()}: error", "%", tuple(one.error for one in others))
        yield Figure(f"{metric.upper()}: noise floor", "%", tuple(one.noise for one in rows))


def main() -> int:
    """Measure, unless there are runs, and predict."""
    parser = make_parser("bench_own_engine", __doc__, 3)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="keep the runs there (default: a temporary folder)")
    where.add_argument("--runs", type=Path, metavar="DIR", help="runs of an earlier call; starts no system")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="T", help="of a run (default 6)")
    parser.add_argument("--port", type=int, default=None, metavar="N", help="of the system (default: a free one)")
    options = parser.parse_args()
    found = conditions(STORYTELLER, repeats=options.repeats, seconds=options.seconds)
    show_conditions(found)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.runs or options.out or Path(temporary)
        if options.runs is None:
            measure(folder, options.repeats, options.seconds, options.port)
        figures = list(_figures(judge(folder)))
    report("bench_own_engine", found, figures)
    return 1 if any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
