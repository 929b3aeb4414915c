"""TTFT: what serving adds to the bare engine, with one client.

Bare: the engine and its torch executor alone, from `add` to the first token. Served: a streaming completion of a text
prompt through HTTP, gateway (tokenizing included), link and prefill instance, from the request sent to the first token
received by a raw client; connecting comes before. The same token ids, the same threads, one request at a time, bare and
served in turns; every prompt is new, so that no prefix is reused. Goal: a median difference of at most 15 ms.
"""

import asyncio
import random

from serving.gateway.api.settings import ServedModel
from tests.benchmarks.bare_engine import BareProcess
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

GOAL_MS = 15.0
WARM_UP = 3
_WORDS = "the a little dog ran over hill and into garden there others were waiting for her red ball in sun".split()


def unique_prompt(model: ServedModel, tokens: int, seed: int) -> tuple[str, list[int]]:
    """A text that occurred nowhere before, of about `tokens` tokens, and its ids."""
    rng = random.Random(seed)
    words = [f"{seed}:"]
    ids: list[int] = []
    while len(ids) < tokens:
        words += [rng.choice(_WORDS) for _ in range(max(1, (tokens - len(ids)) // 4))]
        ids = model.tokenizer.encode(" ".join(words), add_special_tokens=True)
    return " ".join(words), ids


async def measure(
    served: Served, bare: BareProcess, model: ServedModel, tokens: int, repeats: int
) -> tuple[list[float], list[float]]:
    """TTFT of bare and served in turns [ms], after a few rounds to warm up."""
    plain: list[float] = []
    through: list[float] = []
    for repeat in range(-WARM_UP, repeats):
        text, ids = unique_prompt(model, tokens, seed=tokens * 1000 + repeat)
        plain.append(bare.first_token_s(ids) * 1e3)
        await asyncio.sleep(0.02)  # torch's threads of the other side go to sleep
        record = await served.stream(text, 4, return_token_ids=True)
        through.append(record.ttft_s * 1e3)
        await asyncio.sleep(0.02)
    return plain[WARM_UP:], through[WARM_UP:]


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_ttft", __doc__, repeats=30)
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 256, 768], help="prompt lengths")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the engine, bare and served")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    with checkpoint(args.model) as folder:
        found = conditions(folder, dtype=args.dtype, threads_per_instance=args.threads, mode="disaggregated")
        show_conditions(found)
        model = ServedModel.from_folder(folder, names=("bench",), max_model_len=1, created=0)
        figures: list[Figure] = []
        with (
            BareProcess(folder, args.dtype, args.threads, kv_tokens=4096) as bare,
            Served(Setup(folder, threads=args.threads, dtype=args.dtype)) as served,
        ):
            for tokens in args.tokens:
                progress(f"prompts of {tokens} tokens")
                plain, through = asyncio.run(measure(served, bare, model, tokens, args.repeats))
                added = tuple(b - a for a, b in zip(plain, through, strict=True))
                figures.append(Figure(f"bare, {tokens} tokens", "ms", tuple(plain)))
                figures.append(Figure(f"served, {tokens} tokens", "ms", tuple(through)))
                figures.append(Figure(f"added by serving, {tokens} tokens", "ms", added, goal=GOAL_MS))
        report("bench_ttft", found, figures)


if __name__ == "__main__":
    main()
