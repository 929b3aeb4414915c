"""The load generator itself, against its own test server, in three modes:

lateness   How long after its scheduled moment a request is sent: 200 requests/s at a constant rate, 100 tokens/s per
           stream. Next to it a process that only sleeps until the same moments. Goal: p99 of 2 ms.
ceiling    Streamed tokens that one core can take in, compared with aiohttp; each client has a process of its own
           on one core. `blast`: as fast as it goes, four tokens per write. `steps`: one token of every stream at a
           time, each in a read of its own. Goals: 100,000 tokens per CPU second, and twice aiohttp's.
agreement  The same load by `vllm bench serve`, ours / theirs: the server gives the first token after 30 ms, then 80
           tokens/s per stream. --vllm names the interpreter of its environment; without it nothing is compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadgen.cli.main import main as loadgen
from loadgen.driver.fleet import Fleet
from loadgen.driver.health import percentile
from loadgen.driver.messages import DriveSettings
from loadgen.endpoint import Endpoint
from loadgen.plan import Conversation, LoadJob, Turn
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.run_folder import read_result
from loadgen.selftest.ceiling import BURST, BlastServer, Ceiling, start_blast_server
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
from tests.benchmarks.stream_clients import CLIENTS

MODEL, REQUESTS = "storyteller", 160


def late_sends(server: BlastServer, rate_per_s: float, seconds: float) -> tuple[list[float], float]:
    """Lateness of each request [ms], ascending, and the worker's CPU share."""
    endpoint = Endpoint(base_url=server.url, path="/v1/completions", model=server.model)
    turn = Turn(prompt="word " * 1000, output_tokens=24)
    count = int(rate_per_s * seconds)
    jobs = (LoadJob(index=n, due_s=n / rate_per_s, conversation=Conversation(turns=[turn])) for n in range(count))
    records: list[RequestRecord] = []
    fleet = Fleet(DriveSettings(endpoint=endpoint, workers=1))
    done = fleet.run(jobs, on_records=records.extend, on_progress=lambda _: None)
    if done.interrupted or any(record.outcome is not RequestOutcome.OK for record in records):
        raise SystemExit(f"not every request succeeded: {done.problems or [r.error for r in records if r.error][:1]}")
    late = sorted(((record.started_s or 0.0) - record.intended_s) * 1e3 for record in records)
    return late, max(health.cpu_share for health in done.workers)


def late_sleeps(rate_per_s: float, seconds: float) -> list[float]:
    """Lateness of a process that only sleeps [ms], ascending."""
    begin, late = time.monotonic(), []
    for number in range(int(rate_per_s * seconds)):
        due = begin + number / rate_per_s
        time.sleep(max(0.0, due - time.monotonic()))
        late.append((time.monotonic() - due) * 1e3)
    return sorted(late)


def lateness(args: argparse.Namespace) -> list[Figure]:
    """Runs of sends and of sleeps in turns."""
    sent, slept, shares = [], [], []
    for _ in range(args.repeats):
        with start_blast_server("paced", tokens_per_s=100, ttft_s=0.02) as server:
            late, share = late_sends(server, args.rate, 2 * args.seconds)
        sent.append(late)
        shares.append(share)
        slept.append(late_sleeps(args.rate, args.seconds))
        progress(f"lateness p99 {percentile(late, 99):.3f} ms, bare sleep {percentile(slept[-1], 99):.3f} ms")
    return [
        Figure("lateness p50", "ms", tuple(percentile(late, 50) for late in sent)),
        Figure("lateness p99", "ms", tuple(percentile(late, 99) for late in sent), goal=2.0),
        Figure("lateness largest", "ms", tuple(late[-1] for late in sent)),
        Figure("bare sleep p99", "ms", tuple(percentile(late, 99) for late in slept)),
        Figure("CPU share of the worker", "cores", tuple(shares)),
    ]


def measure_client(client: str, server: BlastServer, *, streams: int, seconds: float, core: int) -> Ceiling:
    """One client in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.stream_clients", client, server.url, server.model]
    command += [str(streams), str(seconds), str(core)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds + 120)
    if ended.returncode:
        raise RuntimeError(f"{client} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found = Ceiling(**json.loads(ended.stdout.splitlines()[-1]))
    if found.failed or not found.tokens:
        raise RuntimeError(f"{client}: {found.failed} of {found.requests} responses were not complete")
    return found


def ceiling(args: argparse.Namespace) -> list[Figure]:
    """All installed clients in turns, on both lines."""
    cores = sorted(os.sched_getaffinity(0))
    lines = {
        "blast": (64, start_blast_server(burst=BURST, core=cores[-1])),
        "steps": (256, start_blast_server("paced", tokens_per_s=50.0, lockstep=True, core=cores[-1])),
    }
    figures: list[Figure] = []
    for line, (streams, starting) in lines.items():
        rates: dict[str, list[float]] = {client: [] for client in CLIENTS}
        with starting as server:
            for _ in range(args.repeats):
                for client in CLIENTS:
                    one = measure_client(client, server, streams=streams, seconds=args.seconds, core=cores[0])
                    progress(f"{line}: {client} {one.tokens_per_cpu_s:.0f} tokens per CPU second")
                    rates[client].append(one.tokens_per_cpu_s)
        for client, found in rates.items():
            goal = 100_000.0 if client == CLIENTS[0] else None
            figures.append(Figure(f"{line}: {client}", "tokens/s", tuple(found), goal=goal, at_most=False))
        lead = tuple(ours / other for ours, other in zip(*rates.values(), strict=True))
        figures.append(Figure(f"{line}: loadgen / aiohttp", "x", lead, goal=2.0, at_most=False))
    return figures


def our_figures(url: str, way: list[str], out: Path) -> dict[str, float]:
    """Our figures, from the actual send as vLLM's tool counts."""
    flags = ["run", "--url", url, "--model", MODEL, "--tokenizer", str(STORYTELLER), *way, "--seed", "1"]
    flags += ["--input-len", "64", "--output-len", "64", "--num-prompts", str(REQUESTS)]
    status = loadgen([*flags, "--quiet", "--no-report", "--out", str(out)])
    assert status == 0, f"our own run failed with status {status}"
    result = read_result(out)
    return {
        "mean_ttft_ms": 1e3 * (result.metrics["ttft_sent"].mean or 0.0),
        "mean_tpot_ms": 1e3 * (result.metrics["tpot"].mean or 0.0),
        "output_throughput": result.throughput.output_tokens_per_s,
    }


def vllm_figures(python: Path, url: str, way: list[str], out: Path) -> dict[str, float]:
    """Results of `vllm bench serve`, under its names. Read with vllm 0.33.0.

    Its TTFT is measured from before a connection is taken to the first chunk with choices, even an empty text.
    """
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai"]
    command += ["--base-url", url, "--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", str(STORYTELLER)]
    command += ["--dataset-name", "random", "--random-range-ratio", "0", "--random-input-len", "64"]
    command += ["--random-output-len", "64", "--num-prompts", str(REQUESTS), "--seed", "1", *way, "--ignore-eos"]
    command += ["--temperature", "0", "--disable-tqdm", "--save-result", "--result-filename", str(out)]
    offline = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "*", "no_proxy": "*", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    subprocess.run(command, env=os.environ | offline, stdout=sys.stderr, check=True, timeout=900.0)
    found: dict[str, float] = json.loads(out.read_text())
    return found


def agreement(args: argparse.Namespace) -> list[Figure]:
    """Alternate with vLLM's tool, in a closed loop and with Poisson arrivals."""
    if args.vllm is None:
        progress("agreement: no --vllm PYTHON given, nothing to compare with")
        return []
    ratios: dict[str, list[float]] = {}
    ways = {
        "closed loop, 8 at once": (["--concurrency", "8"], ["--max-concurrency", "8"]),
        "Poisson, 8 requests/s": (["--request-rate", "8"], ["--request-rate", "8"]),
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blast_server("paced", ttft_s=0.03, tokens_per_s=80, model=MODEL) as server,
    ):
        for repeat in range(args.repeats):
            for name, (ours, theirs) in ways.items():
                progress(f"{name}, repeat {repeat + 1}")
                mine = our_figures(server.url, ours, Path(folder) / f"ours-{name}-{repeat}")
                other = vllm_figures(args.vllm, server.url, theirs, Path(folder) / f"vllm-{name}-{repeat}.json")
                for figure, value in mine.items():
                    ratios.setdefault(f"{name}: {figure}", []).append(value / other[figure])
    return [Figure(name, "ours/vllm", tuple(values)) for name, values in ratios.items()]


MODES = {"lateness": lateness, "ceiling": ceiling, "agreement": agreement}


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_loadgen", __doc__, 3, MODES)
    parser.add_argument("--rate", type=float, default=200.0, help="lateness: requests per second (default 200)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (default 5)")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="an interpreter that has vllm")
    args = parser.parse_args()
    found = conditions(None, rate_per_s=args.rate, seconds=args.seconds, cores=len(os.sched_getaffinity(0)))
    show_conditions(found)
    figures = [figure for mode in args.modes or MODES for figure in MODES[mode](args)]
    if figures:
        report("bench_loadgen", found, figures)


if __name__ == "__main__":
    main()
