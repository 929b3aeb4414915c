"""Does our load generator report the same figures as other tools, on the same server under the same load?

The server is the load generator's own test server: 30 ms (--ttft-ms) to the first token, then 80 tokens/s a stream, one
write per token; it is no limit, so that what differs is the tools. Runs alternate (ours, theirs, ours, theirs); ratios
are ours divided by theirs. Each tool comes from its own environment: --vllm PYTHON --guidellm PYTHON --aiperf PYTHON.
"""

import tempfile
from pathlib import Path

from loadgen.cli.main import main as loadgen
from loadgen.run_folder import read_result
from loadgen.selftest.process import start_blast_server
from tests.benchmarks.conditions import STORYTELLER, Figure, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.peer_load_tools import RUNNERS, Load, PeerResult, Room, Target, add_peers, chosen_peers

FIGURES = ("ttft_mean_s", "tpot_mean_s", "output_tokens_per_s", "requests_per_s")
LOADS = {
    "closed loop, 8 at once": Load(160, 64, 64, seed=1, concurrency=8),
    "Poisson, 8 requests/s": Load(160, 64, 64, seed=1, rate=8.0),
}


def ours(target: Target, load: Load, out: Path) -> dict[str, float]:
    """Our figures, from the actual send as the other tools count."""
    way = ["--concurrency", str(load.concurrency)] if load.concurrency else ["--request-rate", str(load.rate)]
    flags = ["run", "--url", target.url, "--model", target.model, "--tokenizer", str(target.tokenizer), *way]
    flags += ["--input-len", str(load.input_tokens), "--output-len", str(load.output_tokens), "--seed", str(load.seed)]
    status = loadgen([*flags, "--num-prompts", str(load.requests), "--quiet", "--no-report", "--out", str(out)])
    assert status == 0, f"our own run failed with status {status}"
    result = read_result(out)
    means = {name: result.metrics[name].mean or 0.0 for name in ("ttft_sent", "tpot")}
    rates = result.throughput
    return dict(
        zip(FIGURES, (means["ttft_sent"], means["tpot"], rates.output_tokens_per_s, rates.requests_per_s), strict=True)
    )


def theirs(tool: str, python: Path, target: Target, load: Load, out: Path) -> PeerResult:
    """Another tool's figures; one sending process, so that it does not crowd two cores."""
    return RUNNERS[tool](python, target, load, out, Room(processes=1))


def main() -> None:
    """Alternate with every tool given."""
    parser = make_parser("bench_loadgen_agreement", __doc__, repeats=2)
    parser.add_argument("--ttft-ms", type=float, default=30.0, help="the server's time to first token (default 30)")
    add_peers(parser)
    options = parser.parse_args()
    peers = chosen_peers(options)
    if not peers:
        print("no other tool given (--vllm, --guidellm, --aiperf PYTHON): nothing to compare with")
        return
    found = conditions(None, server=f"{options.ttft_ms:g} ms to the first token, 80 tokens/s", loads=list(LOADS))
    show_conditions(found)
    ratios: dict[tuple[str, str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        start_blast_server("paced", ttft_s=options.ttft_ms / 1e3, tokens_per_s=80, model="storyteller") as server,
    ):
        target = Target(server.url, "storyteller", options.model or STORYTELLER)
        for repeat in range(options.repeats):
            for name, load in LOADS.items():
                for tool, python in peers.items():
                    progress(f"{tool}, {name}, repeat {repeat + 1}")
                    place = Path(folder) / f"{tool}-{load.rate or 0:g}-{repeat}"
                    mine = ours(target, load, place / "ours")
                    other = theirs(tool, python, target, load, place / "theirs")
                    for figure in FIGURES:
                        ratios.setdefault((tool, name, figure), []).append(mine[figure] / getattr(other, figure))
    figures = [
        Figure(f"{tool}, {name}: {figure}", "ours/theirs", tuple(values))
        for (tool, name, figure), values in ratios.items()
    ]
    report("bench_loadgen_agreement", found, figures)


if __name__ == "__main__":
    main()
