"""Output tokens/s with prefill and decode on two hosts ÷ with both on one, hosts made of namespaces (`deploy/hosts`).

Two systems side by side, each on a Ray of its own, asked in turns: 32 streams of 128 tokens at once, greedy, by a
client on the host of a gateway. All share the machine's cores, so that the ratio shows what the way between hosts costs
and nothing that a second machine's cores would give. Goal: 0.95.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, progress, report, show_conditions
from tests.deploy.ray_hosts import RayHosts, ray_hosts

GOAL = 0.95
CONFIG = Path(__file__).parents[1] / "deploy" / "two-hosts.toml"
PORT = 8000
DEPLOY_S, TURN_S = 400.0, 300.0


def deployed(on: RayHosts) -> str:
    """Deploy the system. Returns: a host with a gateway."""
    first = on.names[0]
    on.cloudmatrix(first, "serve", "--address", on.address, "--config", str(CONFIG), timeout=DEPLOY_S)
    return on.gateway_host()


def served_s(on: RayHosts, host: str, args: argparse.Namespace, seed: int) -> float:
    """One turn's time [s]."""
    sizes = [str(number) for number in (args.streams, args.prompt, args.output, seed)]
    client = [sys.executable, "-m", "tests.benchmarks.between_hosts.client", on.hosts.addresses[host], str(PORT)]
    command = ("env", f"PYTHONPATH={ROOT}", *client, *sizes)
    return float(on.hosts.run(host, *command, timeout=TURN_S))


def measure(args: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Tokens per second on one host, and the ratios of two hosts to it, turn by turn."""
    alone: list[float] = []
    ratios: list[float] = []
    tokens = args.streams * args.output
    with ray_hosts("only", npus=16, ub_memory_mib=2048) as one, ray_hosts("left", "right") as two:
        places = {system: deployed(system) for system in (one, two)}
        for repeat in range(-1, args.repeats):  # the first one warms up
            order = (one, two) if repeat % 2 else (two, one)
            took = {system: served_s(system, places[system], args, 1_000 + repeat) for system in order}
            alone.append(tokens / took[one])
            ratios.append(took[one] / took[two])
            progress(f"turn {repeat + 1}: {alone[-1]:.0f} tokens/s, ratio {ratios[-1]:.3f}")
            progress(f"median {statistics.median(ratios[-args.repeats :]):.3f}")
    return alone[1:], ratios[1:]


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_two_hosts", __doc__, repeats=12)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens generated per stream")
    args = parser.parse_args()
    found = conditions(None, streams=args.streams, prompt_tokens=args.prompt, output_tokens=args.output)
    found["load"] = os.getloadavg()[0]
    show_conditions(found)
    alone, ratios = measure(args)
    figures = [
        Figure("both pools on one host", "tokens/s", tuple(alone)),
        Figure("two hosts / one", "", tuple(ratios), goal=GOAL, at_most=False),
    ]
    report("bench_two_hosts", found, figures)


if __name__ == "__main__":
    main()
