"""Streamed tokens that one core can take in: the load generator's client against aiohttp and httpx.

Every client reads from the same blast server (an event of 250 bytes per token), in a process of its own on one core,
and does with every token what it would do in a real run. What counts is tokens per CPU second of the client, so it does
not matter whether server and client share a core. Two lines:

blast   as fast as it goes. The server writes four tokens at a time, or it would be slower than the client; a client
        that lags behind finds many in one read
steps   a token for every stream at a time, as from an engine that decodes a batch: each in a read of its own, which is
        the worst case. Much of it is the kernel's work (waking up, reading), the same for every client

Goals: at least 100,000 tokens/s, and twice the fastest of the other clients, in both.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

from loadgen.selftest import BlastServer, start_blast_server
from loadgen.selftest.ceiling import BURST, Ceiling
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.stream_clients import OTHERS

GOAL_TOKENS_PER_S = 100_000.0
GOAL_RATIO = 2.0
OURS = "loadgen"


def measure(client: str, server: BlastServer, *, streams: int, seconds: float, core: int) -> Ceiling:
    """One client in a process of its own.

    Raises: RuntimeError if it failed, or got answers that were not complete.
    """
    command = [sys.executable, "-m", "tests.benchmarks.stream_clients", f"--client={client}", f"--core={core}"]
    command += [f"--url={server.url}", f"--model={server.model}", f"--streams={streams}", f"--seconds={seconds}"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=seconds + 120)
    if ended.returncode:
        raise RuntimeError(f"{client} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found = Ceiling(**json.loads(ended.stdout.splitlines()[-1]))
    if found.failed or not found.tokens:
        raise RuntimeError(f"{client}: {found.failed} of {found.requests} answers were not complete")
    return found


def installed() -> tuple[list[str], list[str]]:
    """Clients that can be measured here, and those that are missing."""
    there = [name for name in OTHERS if find_spec(name) is not None]
    return [OURS, *there], [name for name in OTHERS if name not in there]


def figures_of(line: str, found: dict[str, list[Ceiling]]) -> list[Figure]:
    """Rows of one line: each client, then our lead over the fastest of the others, repeat by repeat."""
    figures = []
    for client, repeats in found.items():
        rate = tuple(one.tokens_per_cpu_s for one in repeats)
        if client == OURS:
            figures.append(Figure(f"{line}: {client}", "tokens/s", rate, goal=GOAL_TOKENS_PER_S, at_most=False))
            reads = tuple(one.tokens_per_read for one in repeats)
            figures.append(Figure(f"{line}: {client}, tokens per read", "", reads))
        else:
            figures.append(Figure(f"{line}: {client}", "tokens/s", rate))
        figures.append(Figure(f"{line}: {client}, CPU per token", "us", tuple(one.us_per_token for one in repeats)))
    others = [repeats for client, repeats in found.items() if client != OURS]
    if others:
        fastest = [max(one.tokens_per_cpu_s for one in pair) for pair in zip(*others, strict=True)]
        lead = tuple(ours.tokens_per_cpu_s / best for ours, best in zip(found[OURS], fastest, strict=True))
        figures.append(Figure(f"{line}: loadgen / fastest other", "x", lead, goal=GOAL_RATIO, at_most=False))
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_loadgen_ceiling", __doc__, repeats=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement")
    parser.add_argument("--streams", type=int, default=64, help="blast line: streams at once")
    parser.add_argument("--step-streams", type=int, default=256, help="steps line: streams at once")
    parser.add_argument("--steps-per-s", type=float, default=50.0, help="steps line: tokens/s of each stream")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    clients, missing = installed()
    found = conditions(
        None,
        clients=", ".join(clients),
        not_installed=", ".join(missing) or "none",
        blast_streams=options.streams,
        step_streams=options.step_streams,
        steps_per_s=options.steps_per_s,
        seconds=options.seconds,
        cores_apart=len(cores) > 1,
    )
    show_conditions(found)
    figures: list[Figure] = []
    lines = {
        "blast": (options.streams, start_blast_server(burst=BURST, core=cores[-1])),
        "steps": (
            options.step_streams,
            start_blast_server("paced", tokens_per_s=options.steps_per_s, lockstep=True, core=cores[-1]),
        ),
    }
    for line, (streams, starting) in lines.items():
        measured: dict[str, list[Ceiling]] = {client: [] for client in clients}
        with starting as server:
            for _ in range(options.repeats):
                for client in clients:
                    one = measure(client, server, streams=streams, seconds=options.seconds, core=cores[0])
                    progress(f"{line}: {client} {one.tokens_per_cpu_s:.0f} tokens/s, {one.us_per_token:.1f} us")
                    measured[client].append(one)
        figures += figures_of(line, measured)
    report("bench_loadgen_ceiling", found, figures)


if __name__ == "__main__":
    main()
