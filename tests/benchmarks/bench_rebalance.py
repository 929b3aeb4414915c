"""Rebalance: do streams wait longer while experts move, and how soon is a group even again after a switch of topic?

Needs a running server with one group (`deploy/ep.toml`) and a slot to spare on each rank, `[experts] redundant = 1`.

- Stretches of time in turns, with experts moving without pause and without: p99 of the gaps between two tokens, with ÷
  without, of each pair. Goal: at most 1.05. `[experts] policy = "none"` keeps the shell from moving some beside.
- Streams read another kind of text: time until the mean balancedness of what is counted since is 0.9. Goal: 20 s.
  `--repeats 0` does only this.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import httpx

from serving.cli.experts_table import fetch_experts, order_experts
from serving.errors import UnavailableError
from serving.experts.core.split import balancedness
from serving.http_client import ask_gateway
from tests.benchmarks.bench_resize import PATIENCE_S, Client, read
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

ROOT = Path(__file__).parents[2]
STRETCH_S = 10.0
EVEN = 0.9
LOOK_S = 2.0
SETTLE_S = 40.0
"""Of streams that read one text, before they read another: the map fits the first by then."""
MOST_S = 120.0
GOAL_RATIO, GOAL_S = 1.05, 20.0
PIECE = 40
"""Tokens of a prompt."""

Group = Callable[[], dict[str, Any]]


def other_place(group: dict[str, Any], rng: random.Random) -> dict[str, int]:
    """An expert and a rank of the group that does not hold it."""
    ranks, layers = group["ranks"], len(group["balancedness"])
    while True:
        layer, expert, rank = rng.randrange(layers), rng.randrange(group["experts"]), rng.choice(ranks)
        if expert not in rank["held"][layer]:
            return {"layer": layer, "expert": expert, "rank": rank["rank"]}


async def move_all_the_time(url: str, key: str | None, group: Group, until: float, rng: random.Random) -> int:
    """Order a move whenever none is under way. Returns: how many were made."""
    made = 0
    while time.monotonic() < until:
        try:
            place = other_place(await asyncio.to_thread(group), rng)
            await asyncio.to_thread(order_experts, url, key, "move", place)
            made += 1
        except UnavailableError:
            await asyncio.sleep(0.05)  # one is under way, or that rank holds it by now
    return made


def p99(clients: Sequence[Client], begin: float, end: float) -> float:
    """The 99th percentile of all gaps that ended then [s]."""
    gaps = [length for client in clients for at, length in client.gaps if begin <= at <= end]
    return quantiles(gaps, n=100)[98] if len(gaps) > 1 else 0.0


async def gaps_under_moves(url: str, key: str | None, group: Group, clients: list[Client], pairs: int) -> list[Figure]:
    """Stretches with and without moves, in turns."""
    rng, ratios, moves = random.Random(3), [], 0
    for _ in range(pairs):
        found = []
        for moving in (True, False):
            begin = time.monotonic()
            if moving:
                moves += await move_all_the_time(url, key, group, begin + STRETCH_S, rng)
            else:
                await asyncio.sleep(STRETCH_S)
            found.append(p99(clients, begin, time.monotonic()))
        ratios.append(found[0] / found[1])
        progress(f"p99 of gaps {found[0] * 1e3:.1f} ms while experts move, {found[1] * 1e3:.1f} ms while not")
    return [
        Figure("p99 of gaps while experts move ÷ while not", "", tuple(ratios), goal=GOAL_RATIO),
        Figure("  moves in a second", "1/s", (moves / (pairs * STRETCH_S),)),
    ]


async def time_to_even(group: Group) -> tuple[float, float]:
    """Time until rows that come in between two looks, under one map, are even over the ranks [s].

    Returns: that, and balancedness at the first look.
    """
    begin, before = time.monotonic(), await asyncio.to_thread(group)
    first: float | None = None
    while time.monotonic() < begin + MOST_S:
        await asyncio.sleep(LOOK_S)
        now = await asyncio.to_thread(group)
        if now["map_version"] == before["map_version"]:
            layers = [
                balancedness(one - two for one, two in zip(*rows, strict=True))
                for rows in zip(now["rank_layer_rows"], before["rank_layer_rows"], strict=True)
            ]
            progress(f"{time.monotonic() - begin:.0f} s: balancedness {fmean(layers):.2f}, map {now['map_version']}")
            first = fmean(layers) if first is None else first
            if fmean(layers) >= EVEN:
                return time.monotonic() - begin, first
        before = now
    return MOST_S, first or 0.0


def pieces(text: str, count: int) -> list[str]:
    """Prompts of one kind of text."""
    words = text.split()
    return [" ".join(words[at : at + PIECE]) for at in range(0, count * PIECE, PIECE)]


async def measure(url: str, key: str | None, streams: int, pairs: int, files: Sequence[Path]) -> list[Figure]:
    """Moves while streams read the first text, if any pairs of stretches are asked for; then a switch to each other."""
    model = (await asyncio.to_thread(ask_gateway, url, "/v1/models", key))["data"][0]["id"]

    def group() -> dict[str, Any]:
        (one,) = fetch_experts(url, key)["groups"]
        return dict(one)

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    figures: list[Figure] = []
    texts = [path.read_text() for path in files]
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S) as http:
        for number, text in enumerate(texts):
            over = asyncio.Event()
            tokens = [await asyncio.to_thread(_ids, url, key, model, piece) for piece in pieces(text, streams)]
            clients = [Client(one) for one in tokens]
            running = [asyncio.create_task(read(client, http, model, over)) for client in clients]
            await asyncio.sleep(LOOK_S)
            if number == 0:
                figures += await gaps_under_moves(url, key, group, clients, pairs) if pairs else []
                await asyncio.sleep(0 if pairs else SETTLE_S)
            else:
                took_s, first = await time_to_even(group)
                switch = f"switch to {files[number].name}"
                figures.append(Figure(f"{switch}: time to even load", "s", (took_s,), goal=GOAL_S))
                figures.append(Figure("  balancedness at the first look", "", (first,)))
            over.set()
            await asyncio.gather(*running)
            differ = sum(client.differ + client.failed for client in clients)
            figures.append(Figure("  answers that failed or differ", "", (differ,), goal=0.0))
    return figures


def _ids(url: str, key: str | None, model: str, text: str) -> list[int]:
    found: list[int] = ask_gateway(url, "/tokenize", key, body={"model": model, "prompt": text})["tokens"]
    return found


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_rebalance", __doc__, repeats=5)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway (default: %(default)s)")
    parser.add_argument("--api-key", help="one of [gateway] admin_keys, where there are keys")
    parser.add_argument("--streams", type=int, default=8, help="at once (default: %(default)s)")
    parser.add_argument(
        "--texts",
        type=Path,
        nargs="+",
        metavar="FILE",
        default=[ROOT / "README.md", ROOT / "serving/gateway/api/app.py"],
        help="what streams read, one after the other (default: two files of this repository)",
    )
    args = parser.parse_args()
    found = conditions(args.model, streams=args.streams)
    show_conditions(found)
    report(
        "bench_rebalance", found, asyncio.run(measure(args.url, args.api_key, args.streams, args.repeats, args.texts))
    )


if __name__ == "__main__":
    main()
