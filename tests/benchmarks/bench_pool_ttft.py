"""TTFT of a prompt whose beginning another prefill instance has computed, as a share of that of a new prompt.

A real system with two prefill instances and one memory server. In each round a beginning is computed by one instance,
which publishes it; then the whole prompt goes to the other one, which pulls the beginning from the pool and computes
the rest; then a prompt of the same length that nobody has seen. Instances take turns in an idle system, and the usage
of each answer proves where its tokens came from. By default the random checkpoint of 300 M weights. Goal: at most 0.25.
"""

import asyncio
import random
import re
import time

import torch

from serving.model.config import read_architecture
from serving.model.size import weight_bytes
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.served import Served, Setup

GOAL = 0.25
BLOCK_TOKENS = 16
_FIRST_PLAIN_ID = 16
_PATIENCE_S = 60.0


def total(served: Served, counter: str) -> int:
    """One of our counters, added up over all instances."""
    found = re.findall(rf"^cloudmatrix:{counter}\{{.*\}} (\S+)$", served.get("/metrics"), re.MULTILINE)
    return int(sum(float(value) for value in found))


async def wait_stored(served: Served, blocks: int) -> None:
    """Until so many blocks were published."""
    end = time.monotonic() + _PATIENCE_S
    while (stored := total(served, "pool_stored_blocks_total")) < blocks:
        if time.monotonic() > end:
            raise RuntimeError(f"only {stored} of {blocks} blocks were published")
        await asyncio.sleep(0.1)


async def ttft_ms(served: Served, prompt: list[int], pulled: int) -> float:
    """TTFT of one prompt, of which so many tokens must come from the pool [ms].

    Raises: RuntimeError if they did not.
    """
    before = total(served, "prompt_tokens_pulled_total")
    record = await served.stream(prompt, 1, return_token_ids=True)
    await asyncio.sleep(0.2)  # a request is counted when it is over
    came = total(served, "prompt_tokens_pulled_total") - before
    if came != pulled:
        raise RuntimeError(f"{pulled} tokens should have come from the pool, {came} did")
    return record.ttft_s * 1e3


async def measure(
    served: Served, vocab_size: int, tokens: int, share: float, repeats: int
) -> tuple[list[float], list[float]]:
    """TTFT with the beginning in the pool, and without [ms]; the first round warms up."""
    rng = random.Random(5)
    common = int(tokens * share) // BLOCK_TOKENS * BLOCK_TOKENS

    def new(count: int) -> list[int]:
        return [rng.randrange(_FIRST_PLAIN_ID, vocab_size) for _ in range(count)]

    warm: list[float] = []
    cold: list[float] = []
    for repeat in range(repeats + 1):
        beginning, before = new(common), total(served, "pool_stored_blocks_total")
        await ttft_ms(served, beginning, 0)
        await wait_stored(served, before + common // BLOCK_TOKENS)
        warm.append(await ttft_ms(served, beginning + new(tokens - common), common))
        cold.append(await ttft_ms(served, new(tokens), 0))
        await asyncio.sleep(1.5)  # its blocks are published before the next round counts
        progress(
            f"round {repeat}: {warm[-1]:.0f} ms with {common} of {tokens} tokens pulled, {cold[-1]:.0f} ms without"
        )
    return warm[1:], cold[1:]


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_pool_ttft", __doc__, repeats=5)
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prompts (default 2048)")
    parser.add_argument("--share", type=float, default=0.9, help="of it that is in the pool (default 0.9)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    with checkpoint(args.model, kind="small", bundled=False) as model:
        weights_mib = weight_bytes(model, getattr(torch, args.dtype).itemsize) >> 20
        setup = Setup(
            model, threads=1, dtype=args.dtype, prefills=2, memory_servers=1, memory_mib=weights_mib * 3 // 2 + 1024
        )
        found = conditions(model, tokens=args.tokens, share=args.share, dtype=args.dtype, threads=1)
        show_conditions(found)
        with Served(setup) as served:
            vocab_size = read_architecture(model).vocab_size
            warm, cold = asyncio.run(measure(served, vocab_size, args.tokens, args.share, args.repeats))
    ratios = tuple(a / b for a, b in zip(warm, cold, strict=True))
    figures = [
        Figure("TTFT, beginning pulled from the pool", "ms", tuple(warm)),
        Figure("TTFT, all of it computed", "ms", tuple(cold)),
        Figure("pulled / computed", "", ratios, goal=GOAL),
    ]
    report("bench_pool_ttft", found, figures)


if __name__ == "__main__":
    main()
