"""The whole system as shipped next to `llama-server`: the same model, clients and cores, in turns.

    python -m tests.benchmarks.bench_system --peers DIR --models DIR [--forms F16 Q8_0 Q4_K_M] [--guidellm PYTHON]

`cloudmatrix serve` has the defaults of deploy/small.toml, with SmolLM2-135M-Instruct in bfloat16; `llama-server` has a
thread per core and a slot per client. `python -m tests.benchmarks.engine_figures.build_peers DIR` builds it; its models
are made of the same GGUF file on first use. Load is a closed loop of `loadgen`: 128 tokens in, 128 out, prompts of
random words that differ in each round and number of clients. In a round each server is started, measured and stopped
before the next one starts, since an idle one would use the cores too. A ratio divides the two figures of one round.

--guidellm names an interpreter that has guidellm 0.8: in the first round it repeats each load of ours and of F16.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadgen.cli.main import main as loadgen
from loadgen.run_folder import read_result
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, one_of, progress, report, show_conditions
from tests.benchmarks.engine_figures.models import prepare_gguf
from tests.benchmarks.engine_figures.peers import Llama, find_peers
from tests.benchmarks.served import AllCores
from tests.e2e.server import free_port, wait_for

FORMS = ("F16", "Q8_0", "Q4_K_M")
OURS = "ours, bf16"
TOKENS = 128
CLIENTS = (1, 8, 32)
START_S = 120.0
GOALS = {
    "tokens/s": dict(zip(CLIENTS, (1.0, 1.2, 1.3), strict=True)),
    "TTFT p50": dict.fromkeys(CLIENTS, 1.0),
    "TTFT p99": dict.fromkeys(CLIENTS, 1.2),
}
"""Of the ratios to F16, llama.cpp's form with the same number of bits."""

Measured = dict[str, float]
"""Output tokens per second, and TTFT [s], under the names of `GOALS`."""
Key = tuple[str, int, str]
"""Server, clients, name of the figure."""


def requests(clients: int) -> int:
    """Requests of one measurement: two after another per client, more for one alone."""
    return max(4, 2 * clients)


@contextmanager
def our_server(model: Path) -> Iterator[str]:
    """`cloudmatrix serve`; as `make serve MODEL=smollm2` starts it. Returns: its URL."""
    config = ROOT / "deploy" / "small.toml"
    room = ("--set", "hardware.hbm_per_die_mib=320", "--set", "model.dtype=bfloat16")
    with AllCores(config, "--model", str(model), *room) as server:
        yield server.url


@contextmanager
def llama_server(llama: Llama, gguf: Path) -> Iterator[str]:
    """`llama-server` with a slot for every client. Returns: its URL."""
    port, slots = free_port(), max(CLIENTS)
    command = [str(llama.tool("llama-server")), "-m", str(gguf), "--port", str(port), "-t", str(os.cpu_count())]
    command += ["--parallel", str(slots), "-c", str(slots * 4 * TOKENS), "--offline", "--log-disable"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"llama-server ended with {process.returncode}")
        try:
            return bool(urllib.request.urlopen(f"{url}/health", timeout=1.0).status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        wait_for(ready, "llama-server", START_S)
        yield url
    finally:
        process.kill()  # it keeps nothing
        process.wait()


def by_loadgen(url: str, model: Path, clients: int, seed: int, out: Path) -> Measured:
    """One closed loop of our load generator."""
    flags = ["run", "--url", url, "--tokenizer", str(model), "--concurrency", str(clients), "--seed", str(seed)]
    flags += ["--num-prompts", str(requests(clients)), "--input-len", str(TOKENS), "--output-len", str(TOKENS)]
    status = loadgen([*flags, "--quiet", "--no-report", "--no-scrape", "--out", str(out)])
    result = read_result(out)
    if status or result.requests != result.outcomes.get("ok"):
        raise RuntimeError(f"loadgen ended with {status}: {result.outcomes}")
    late = result.metrics["ttft"].percentiles
    rate = result.throughput.output_tokens_per_s
    return {"tokens/s": rate, "TTFT p50": late["50"], "TTFT p99": late["99"]}


def by_guidellm(python: Path, url: str, model: Path, clients: int, seed: int, out: Path) -> Measured:
    """The same load by guidellm. Its rate is that of the requests' own durations, its prompts are its own."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10.0) as response:
        name = json.load(response)["data"][0]["id"]
    # Without validation, which would ask for a route that only vLLM has.
    backend = {"kind": "openai_http", "target": url, "model": name, "validate_backend": False}
    options = {
        "backend": backend | {"request_format": "/v1/completions", "extras": {"body": {"temperature": 0}}},
        "profile": {"kind": "concurrent", "streams": clients},
        "constraint": {"kind": "max_requests", "count": requests(clients)},
        "tokenizer": {"kind": "huggingface_auto", "model": str(model)},
        "data": {"kind": "synthetic_text", "prompt_tokens": TOKENS, "output_tokens": TOKENS},
        "seed": {"kind": "static", "value": seed},
        "output": {"kind": "json", "path": str(out)},
    }
    command = [str(python), "-m", "guidellm", "run", "--disable-console"]
    command += [word for option, value in options.items() for word in (f"--{option}", json.dumps(value))]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
    subprocess.run(command, env=environment, stdout=sys.stderr, check=True, timeout=600.0)
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    late = benchmark["metrics"]["time_to_first_token_ms"]["successful"]["percentiles"]
    rate = benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"]
    return {"tokens/s": rate, "TTFT p50": late["p50"] / 1e3, "TTFT p99": late["p99"] / 1e3}


def measure(args: argparse.Namespace, model: Path, llama: Llama) -> tuple[dict[Key, list[float]], list[Figure]]:
    """All rounds. Returns: by server, clients and name the figure of each round; and those of guidellm."""
    servers = {OURS: lambda: our_server(model)}
    for form in args.forms:
        gguf = prepare_gguf(args.models, llama, form)
        servers[form] = lambda gguf=gguf: llama_server(llama, gguf)  # type: ignore[misc] # bound now
    found: dict[Key, list[float]] = {}
    other: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.repeats):
            for name in list(servers) if turn % 2 == 0 else list(servers)[::-1]:
                with servers[name]() as url:
                    by_loadgen(url, model, 2, 10_000, Path(folder, f"warm-{turn}-{name}"))
                    for clients in args.clients:
                        seed, out = 100 * turn + clients, Path(folder, f"{turn}-{name}-{clients}")
                        one = by_loadgen(url, model, clients, seed, out)
                        progress(f"round {turn + 1}: {name}, {clients} clients: {one}")
                        for figure, value in one.items():
                            found.setdefault((name, clients, figure), []).append(value)
                        if args.guidellm and not turn and name in (OURS, FORMS[0]):
                            again = by_guidellm(args.guidellm, url, model, clients, seed, out.with_suffix(".json"))
                            title = f"guidellm / loadgen: {name}, {clients} clients"
                            other += [Figure(f"{title}: {key}", "", (again[key] / one[key],)) for key in one]
    return found, other


def figures(found: dict[Key, list[float]]) -> list[Figure]:
    """Figures of each server, and ratios of ours to each other one; those to F16 have goals."""
    rows = []
    for (name, clients, figure), values in found.items():
        unit = "tokens/s" if figure == "tokens/s" else "s"
        rows.append(Figure(f"{name}, {clients} clients: {figure}", unit, tuple(values)))
    for (name, clients, figure), values in found.items():
        if name != OURS:
            pairs = zip(found[OURS, clients, figure], values, strict=True)
            goal = GOALS[figure].get(clients) if name == FORMS[0] else None
            ratios = tuple(ours / theirs for ours, theirs in pairs)
            title = f"ours / {name}, {clients} clients: {figure}"
            rows.append(Figure(title, "", ratios, goal, at_most=figure != "tokens/s"))
    return rows


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_system", __doc__, 3)
    parser.add_argument("--peers", type=Path, metavar="DIR", required=True, help="folder of build_peers")
    parser.add_argument("--models", type=Path, metavar="DIR", default=Path("build/models"), help="of llama.cpp's files")
    parser.add_argument("--forms", nargs="+", type=one_of(FORMS), default=FORMS, metavar="FORM", help="of llama-server")
    parser.add_argument("--clients", nargs="+", type=int, default=CLIENTS, metavar="N", help="default 1 8 32")
    parser.add_argument("--guidellm", type=Path, metavar="PYTHON", help="an interpreter that has guidellm")
    args = parser.parse_args()
    llama = find_peers(args.peers).llama
    if llama.absent:
        parser.error(llama.absent)
    if args.model is None:
        from serving.tools.importing.smollm2 import import_smollm2  # it may download the model

        args.model = import_smollm2()
    found = conditions(args.model, llama_server=llama.version, requests={n: requests(n) for n in args.clients})
    show_conditions(found)
    measured, other = measure(args, args.model, llama)
    report("bench_system", found, [*figures(measured), *other])


if __name__ == "__main__":
    main()
