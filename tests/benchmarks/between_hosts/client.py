"""Streams of one turn, all at once, as a process on the host of a gateway. Prints how long they took [s].

python -m tests.benchmarks.between_hosts.client HOST PORT STREAMS PROMPT_TOKENS OUTPUT_TOKENS SEED
"""

import asyncio
import sys
import time

from serving.model.config import read_architecture
from tests.benchmarks.bench_throughput import prompts
from tests.benchmarks.sse_client import completion, stream
from tests.deploy.ray_hosts import MODEL


async def turn(host: str, port: int, batch: list[list[int]], output: int) -> float:
    """Time from the first request to the last stream's end [s]."""
    begun = time.perf_counter()
    bodies = (completion("storyteller", prompt, output) for prompt in batch)
    records = await asyncio.gather(*(stream(host, port, body) for body in bodies))
    elapsed = time.perf_counter() - begun
    if failed := [record for record in records if record.status != 200 or record.first_at is None]:
        raise RuntimeError(f"{len(failed)} of {len(batch)} streams failed, for example {failed[0]}")
    return elapsed


def main(host: str, port: str, streams: str, prompt: str, output: str, seed: str) -> None:
    """Run one turn."""
    vocabulary = read_architecture(MODEL).vocab_size
    batch = prompts(int(streams), int(prompt), vocabulary, int(seed))
    print(asyncio.run(turn(host, int(port), batch, int(output))))


if __name__ == "__main__":
    main(*sys.argv[1:])
