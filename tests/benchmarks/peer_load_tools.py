"""Three published load generators behind one interface: vLLM's `bench serve`, GuideLLM and AIPerf.

Each tool runs from the interpreter of its own environment and streams from `/v1/completions` with a tokenizer folder;
nothing is fetched. Read with vllm 0.33.0, guidellm 0.8.1, aiperf 0.13.0. Figures are the tool's own, from its JSON;
TPOT is (end-to-end - TTFT) / (N - 1) per request, under whatever name the tool has it. Where definitions differ:

vllm      TTFT from before a connection is taken to the first chunk with choices, even an empty text; in an open loop,
          gaps are rescaled so that the last send falls on requests/rate
guidellm  TTFT from writing the request's head, on the wall clock; TPOT is weighted by tokens. In an open loop it
          replays a Poisson trace (sends up to 0.4 s late, the last one often dropped): its profile draws equal gaps
aiperf    TTFT to the first chunk with text; HTTP chunks that arrive in one read share one time stamp
"""

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENVIRONMENT = {"NO_PROXY": "*", "no_proxy": "*", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: a closed loop with `concurrency`, or an open one (Poisson) with `rate` [requests/s]."""

    requests: int
    input_tokens: int
    output_tokens: int
    seed: int
    concurrency: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Base URL without `/v1`, name of the model there, folder of its tokenizer."""

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What the tool reports."""

    ttft_mean_s: float
    tpot_mean_s: float
    output_tokens_per_s: float
    requests_per_s: float


class PeerFailedError(RuntimeError):
    """A tool ended with an error, without a report, or not at all. The message ends with its last output."""


def run_vllm(python: Path, target: Target, load: Load, out: Path) -> PeerResult:
    """`vllm bench serve`; one process. Writes into the folder `out`."""
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"]
    command += ["--base-url", target.url, "--endpoint", "/v1/completions", "--model", target.model]
    command += ["--tokenizer", str(target.tokenizer), "--dataset-name", "random", "--random-range-ratio", "0"]
    command += ["--random-input-len", str(load.input_tokens), "--random-output-len", str(load.output_tokens)]
    command += ["--num-prompts", str(load.requests), "--seed", str(load.seed), "--ignore-eos", "--temperature", "0"]
    command += ["--max-concurrency", str(load.concurrency)] if load.rate is None else ["--request-rate", str(load.rate)]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99", "--disable-tqdm"]
    command += ["--save-result", "--result-dir", str(out), "--result-filename", "vllm.json"]
    found = _run(command, out, {"HF_HUB_OFFLINE": "1"}, "vllm.json")
    return PeerResult(
        found["mean_ttft_ms"] / 1e3,
        found["mean_tpot_ms"] / 1e3,
        found["output_throughput"],
        found["request_throughput"],
    )


def run_guidellm(python: Path, target: Target, load: Load, out: Path) -> PeerResult:
    """`guidellm run`, held to one sending process. Writes into the folder `out`."""
    profile: dict[str, object] = {"kind": "concurrent", "streams": load.concurrency}
    data: dict[str, object] = {
        "kind": "synthetic_text",
        "prompt_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,  # sends ignore_eos, too; so does a trace
    }
    if load.rate is not None:
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
    environment = {"HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    (benchmark,) = _run(command, out, environment, "guidellm.json")["benchmarks"]

    def mean(name: str) -> float:
        return float(benchmark["metrics"][name]["successful"]["mean"])

    ttft, tpot = mean("time_to_first_token_ms") / 1e3, mean("inter_token_latency_ms") / 1e3
    return PeerResult(ttft, tpot, mean("output_tokens_per_second"), mean("requests_per_second"))


def _write_trace(load: Load, out: Path) -> Path:
    """A Poisson process as a trace."""
    assert load.rate is not None, "a closed loop has no times"
    draw, at_s, rows = random.Random(load.seed), 0.0, []
    for _ in range(load.requests):
        rows.append({"timestamp": at_s, "input_length": load.input_tokens, "output_length": load.output_tokens})
        at_s += draw.expovariate(load.rate)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_aiperf(python: Path, target: Target, load: Load, out: Path) -> PeerResult:
    """`aiperf profile`, one worker and one record processor. Writes into the folder `out`."""
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
    command += ["--workers-max", "1", "--record-processors", "1"]
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))  # with these it takes no tokenizer folder
    found = _run(command, out, offline, "profile_export_aiperf.json")
    names = ("time_to_first_token", "inter_token_latency", "output_token_throughput", "request_throughput")
    ttft, tpot, *rates = (found[name]["avg"] for name in names)
    return PeerResult(ttft / 1e3, tpot / 1e3, *rates)


RUNNERS: Mapping[str, Callable[[Path, Target, Load, Path], PeerResult]] = {
    "vllm": run_vllm,
    "guidellm": run_guidellm,
    "aiperf": run_aiperf,
}


def _run(command: Sequence[str], out: Path, environment: Mapping[str, str | None], report: str) -> dict[str, Any]:
    """Run to the end in the folder `out` and read the report; None in `environment` removes a variable."""
    out.mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, **_ENVIRONMENT, **environment}
    log = out / "output.txt"
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
    limit = threading.Timer(_LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
    limit.start()
    try:
        process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        limit.cancel()
    said = log.read_text(errors="replace")[-4000:]
    if process.returncode:
        raise PeerFailedError(f"{command[2]} ended with {process.returncode}:\n{said}")
    try:
        found: dict[str, Any] = json.loads((out / report).read_text())
    except (OSError, ValueError) as error:
        raise PeerFailedError(f"no report: {error}\n{said}") from error
    return found
