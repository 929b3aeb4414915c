"""Three published load generators behind one interface: vLLM's `bench serve`, GuideLLM and AIPerf.

    python -m tests.benchmarks.peer_load_tools --url URL --model NAME --tokenizer DIR
        [--vllm PYTHON] [--guidellm PYTHON] [--aiperf PYTHON] [--rate R | --concurrency C] [--requests N] ...

Each tool runs from the interpreter of its own environment, which is named on the command line, and streams from
`/v1/completions` with a tokenizer folder; nothing is fetched. Read with vllm 0.33.0, guidellm 0.8.1, aiperf 0.13.0.
Figures are the tool's own, from its JSON. TPOT is (end-to-end - TTFT) / (N - 1) per request, under whatever name the
tool has it; where definitions still differ, `PeerResult.note` says how. What the tool itself cost is `cpu_s`, which
includes its start (imports, prompts) and its report: `cpu_us_per_token` of a short and a long run takes those out.
For a ceiling, aim it at a server that only writes, and give it one core (`Room.cores`) that the server does not use.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_QUIET = {"NO_PROXY": "*", "no_proxy": "*", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

VLLM_NOTE = (
    "TTFT: from before a connection is taken to the first chunk with choices, even an empty text; rates: from before"
    " the first send to the last end; open loop: gaps are rescaled so that the last send falls on requests/rate;"
    " percentiles interpolated"
)
GUIDELLM_NOTE = (
    "TTFT: from writing the request's head (connecting and waiting for a turn are outside), on the wall clock; TPOT is"
    " its inter_token_latency, the mean weighted by tokens; rates: first send to last end; percentiles are observed"
    " values; asks for usage in every chunk; open loop: a replayed Poisson trace (first sends to 0.4 s late, last one"
    " often dropped and not counted), for its own profile's processes draw equal gaps, one alone often sends at once"
)
AIPERF_NOTE = (
    "TTFT: from the start of the worker's request to the first chunk with text; TPOT is its inter_token_latency;"
    " rates: first send to last end; percentiles interpolated; N from usage; HTTP chunks that arrive in one read share"
    " one time stamp"
)


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. Closed loop with `concurrency`, open loop (Poisson) with `rate` [requests/s]: exactly one of them.

    Raises: ValueError when both or neither is given.
    """

    requests: int
    input_tokens: int
    output_tokens: int
    seed: int
    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ValueError("a load has either a concurrency or a rate")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask: base URL without `/v1`, name of the model there, folder of its tokenizer."""

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Room:
    """What the tool may use.

    Args:
        cores: cores for all of its processes; None = every one.
        processes: how many of them send requests; None = the tool's own choice. `vllm` always has one.
        limit_s: after this it is killed.
    """

    cores: frozenset[int] | None = None
    processes: int | None = None
    limit_s: float = 900.0


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What the tool reports, and what it cost.

    Args:
        measured_s: the stretch of time that the tool's rates refer to.
        wall_s: life of the tool's process.
        cpu_s: user and system time of that process and all below it.
        note: how its definitions differ.
    """

    tool: str
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    output_tokens_per_s: float
    requests_per_s: float
    output_tokens: int
    completed: int
    failed: int
    measured_s: float
    wall_s: float
    cpu_s: float
    note: str


class PeerFailedError(RuntimeError):
    """A tool ended with an error, without a report, or not at all. The message ends with its last output."""


def cpu_us_per_token(short: PeerResult, long: PeerResult) -> float:
    """CPU time for one more streamed token [us], from two runs that differ in the number of requests alone."""
    return (long.cpu_s - short.cpu_s) / (long.output_tokens - short.output_tokens) * 1e6


ANY_ROOM = Room()


def run_vllm(python: Path, target: Target, load: Load, out: Path, room: Room = ANY_ROOM) -> PeerResult:
    """`vllm bench serve`; one process.

    Effects: writes into the folder `out`.
    Raises: PeerFailedError.
    """
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"]
    command += ["--base-url", target.url, "--endpoint", "/v1/completions", "--model", target.model]
    command += ["--tokenizer", str(target.tokenizer), "--dataset-name", "random", "--random-range-ratio", "0"]
    command += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
    command += ["--num-prompts", str(load.requests), "--seed", str(load.seed), "--ignore-eos", "--temperature", "0"]
    if load.rate is None:
        command += ["--max-concurrency", str(load.concurrency)]
    else:
        command += ["--request-rate", str(load.rate)]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--disable-tqdm"]
    command += ["--save-result", "--result-dir", str(out), "--result-filename", "vllm.json"]
    ended = _run(command, out, {"HF_HUB_OFFLINE": "1"}, room)
    found = _report(out / "vllm.json", ended)
    if not found["completed"]:
        raise PeerFailedError(f"no request of vllm's succeeded:\n{ended.output}")
    return PeerResult(
        tool="vllm",
        ttft_mean_s=found["mean_ttft_ms"] / 1e3,
        ttft_p50_s=found["p50_ttft_ms"] / 1e3,
        ttft_p99_s=found["p99_ttft_ms"] / 1e3,
        tpot_mean_s=found["mean_tpot_ms"] / 1e3,
        output_tokens_per_s=found["output_throughput"],
        requests_per_s=found["request_throughput"],
        output_tokens=found["total_output_tokens"],
        completed=found["completed"],
        failed=found["failed"],
        measured_s=found["duration"],
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
        note=VLLM_NOTE,
    )


def run_guidellm(python: Path, target: Target, load: Load, out: Path, room: Room = ANY_ROOM) -> PeerResult:
    """`guidellm run`; by itself it takes a process per stream, at most ten.

    Effects: writes into the folder `out`.
    Raises: PeerFailedError.
    """
    profile: dict[str, object] = {"kind": "concurrent", "streams": load.concurrency}
    data: dict[str, object] = {
        "kind": "synthetic_text",
        "prompt_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,  # sends ignore_eos, too; so does a trace
    }
    if load.rate is not None:  # its profile `poisson` does not keep to one, see the note
        profile = {"kind": "replay", "schedule_turn": "timestamp"}
        data = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(_write_trace(load, out))}}
    options: dict[str, dict[str, object]] = {
        "backend": {
            "kind": "openai_http",
            "target": target.url,
            "model": target.model,
            "request_format": "/v1/completions",
            "validate_backend": False,  # it would ask for /health
            "extras": {"body": {"temperature": 0}},
        },
        "profile": profile,
        "constraint": {"kind": "max_requests", "count": load.requests},
        "tokenizer": {"kind": "huggingface_auto", "model": str(target.tokenizer)},
        "data": data,
        "seed": {"kind": "static", "value": load.seed},
        "output": {"kind": "json", "path": str(out / "guidellm.json")},
    }
    command = [str(python), "-m", "guidellm", "run", "--disable-console"]
    for name, value in options.items():
        command += [f"--{name}", json.dumps(value)]
    environment = {"HF_HUB_OFFLINE": "1"}
    if room.processes is not None:
        environment["GUIDELLM__MAX_WORKER_PROCESSES"] = str(room.processes)
    ended = _run(command, out, environment, room)
    (benchmark,) = _report(out / "guidellm.json", ended)["benchmarks"]
    return _guidellm_result(benchmark, ended)


def _write_trace(load: Load, out: Path) -> Path:
    """A Poisson process as a trace."""
    assert load.rate is not None, "a closed loop has no times"
    draw = random.Random(load.seed)
    at_s = 0.0
    rows = []
    for _ in range(load.requests):
        rows.append({"timestamp": at_s, "input_length": load.input_tokens, "output_length": load.output_tokens})
        at_s += draw.expovariate(load.rate)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _guidellm_result(benchmark: Mapping[str, Any], ended: "_Ended") -> PeerResult:
    good = {name: value["successful"] for name, value in benchmark["metrics"].items() if _has_statuses(value)}
    made = benchmark["scheduler_metrics"]["requests_made"]
    if not made["successful"]:
        raise PeerFailedError(f"no request of guidellm's succeeded:\n{ended.output}")
    ttft = good["time_to_first_token_ms"]
    return PeerResult(
        tool="guidellm",
        ttft_mean_s=ttft["mean"] / 1e3,
        ttft_p50_s=ttft["percentiles"]["p50"] / 1e3,
        ttft_p99_s=ttft["percentiles"]["p99"] / 1e3,
        tpot_mean_s=good["inter_token_latency_ms"]["mean"] / 1e3,
        output_tokens_per_s=good["output_tokens_per_second"]["mean"],
        requests_per_s=good["requests_per_second"]["mean"],
        output_tokens=round(good["output_token_count"]["total_sum"]),
        completed=made["successful"],
        failed=made["errored"] + made["incomplete"],
        measured_s=benchmark["duration"],
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
        note=GUIDELLM_NOTE,
    )


def _has_statuses(value: object) -> bool:
    return isinstance(value, dict) and "successful" in value


def run_aiperf(python: Path, target: Target, load: Load, out: Path, room: Room = ANY_ROOM) -> PeerResult:
    """`aiperf profile`; workers and record processors by the number of cores, beside its managers.

    Effects: writes into the folder `out`.
    Raises: PeerFailedError.
    """
    command = [str(python), "-m", "aiperf", "profile", "--model-names", target.model, "--url", target.url]
    command += ["--endpoint-type", "completions", "--streaming", "--tokenizer", str(target.tokenizer.resolve())]
    if load.rate is None:
        command += ["--concurrency", str(load.concurrency)]
    else:
        command += ["--request-rate", str(load.rate), "--arrival-pattern", "poisson"]
    command += ["--request-count", str(load.requests), "--random-seed", str(load.seed)]
    command += ["--isl", str(load.input_tokens), "--isl-stddev", "0"]
    command += ["--osl", str(load.output_tokens), "--osl-stddev", "0", "--use-server-token-count"]
    command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    command += ["--ui", "none", "--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(out)]
    if room.processes is not None:
        command += ["--workers-max", str(room.processes), "--record-processors", str(room.processes)]
    ended = _run(command, out, dict.fromkeys(_OFFLINE), room)  # offline it takes no folder for a tokenizer
    found = _report(out / "profile_export_aiperf.json", ended)
    if "time_to_first_token" not in found:
        raise PeerFailedError(f"no request of aiperf's succeeded:\n{ended.output}")
    ttft, good = found["time_to_first_token"], round(found["request_count"]["avg"])
    return PeerResult(
        tool="aiperf",
        ttft_mean_s=ttft["avg"] / 1e3,
        ttft_p50_s=ttft["p50"] / 1e3,
        ttft_p99_s=ttft["p99"] / 1e3,
        tpot_mean_s=found["inter_token_latency"]["avg"] / 1e3,
        output_tokens_per_s=found["output_token_throughput"]["avg"],
        requests_per_s=found["request_throughput"]["avg"],
        output_tokens=round(found["total_output_tokens"]["avg"]),
        completed=good,
        failed=round(found["completed_request_count"]["avg"]) - good,
        measured_s=found["benchmark_duration"]["avg"],
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
        note=AIPERF_NOTE,
    )


Runner = Callable[[Path, Target, Load, Path, Room], PeerResult]
RUNNERS: Mapping[str, Runner] = {"vllm": run_vllm, "guidellm": run_guidellm, "aiperf": run_aiperf}


@dataclass(frozen=True, slots=True)
class _Ended:
    """A tool that has ended. `cpu_s` is of its whole tree: each of them waits for the processes that it started."""

    wall_s: float
    cpu_s: float
    output: str


def _run(command: Sequence[str], out: Path, environment: Mapping[str, str | None], room: Room) -> _Ended:
    """Run to the end in the folder `out`; None in `environment` takes a variable away."""
    out.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **_QUIET, **environment}
    log = out / "output.txt"
    begun = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=out,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if room.cores is not None:
        os.sched_setaffinity(process.pid, room.cores)  # what it starts inherits this
    limit = threading.Timer(room.limit_s, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    try:
        _, status, used = os.wait4(process.pid, 0)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        limit.cancel()
    wall_s = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)  # waited for behind its back
    ended = _Ended(wall_s, used.ru_utime + used.ru_stime, log.read_text(errors="replace")[-4000:])
    if process.returncode:
        raise PeerFailedError(f"{command[2]} ended with {process.returncode} after {wall_s:.0f} s:\n{ended.output}")
    return ended


def _report(path: Path, ended: _Ended) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PeerFailedError(f"no report: {error}\n{ended.output}") from error
    return found


def add_peers(parser: argparse.ArgumentParser) -> None:
    """An option for each tool's interpreter."""
    for tool in RUNNERS:
        parser.add_argument(f"--{tool}", type=Path, metavar="PYTHON", help=f"an interpreter that has {tool}")


def chosen_peers(options: argparse.Namespace) -> dict[str, Path]:
    """Interpreters of the tools asked for."""
    given = {tool: getattr(options, tool) for tool in RUNNERS}
    return {tool: Path(os.path.abspath(python)) for tool, python in given.items() if python is not None}


def main() -> None:
    """Run each tool asked for once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="DIR")
    add_peers(parser)
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument("--rate", type=float, help="open loop, Poisson [requests/s]")
    loop.add_argument("--concurrency", type=int, help="closed loop (default 8)")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, help="sending processes (default: the tool's choice)")
    parser.add_argument("--cores", type=int, nargs="*", help="cores for all of a tool (default: every one)")
    options = parser.parse_args()
    if options.rate is None and options.concurrency is None:
        options.concurrency = 8
    lengths = (options.input_tokens, options.output_tokens)
    load = Load(options.requests, *lengths, options.seed, options.concurrency, options.rate)
    target = Target(options.url, options.model, options.tokenizer.resolve())
    room = Room(frozenset(options.cores) if options.cores else None, options.processes)
    for tool, python in chosen_peers(options).items():
        with tempfile.TemporaryDirectory() as out:
            try:
                print(json.dumps(asdict(RUNNERS[tool](python, target, load, Path(out), room))), flush=True)
            except PeerFailedError as error:
                sys.exit(f"{tool}: {error}")


if __name__ == "__main__":
    main()
