"""The system's own cost and what its KV-cache pool saves, in five modes:

ttft        What serving adds to the time to the first token, one client, prompts of 32, 256 and 768 tokens that are new
            every time: from the request sent (connecting comes before) to the first token, less the same prompt in the
            bare engine. Goal: 15 ms.
throughput  Output tokens/s of 32 streams of 128 tokens through HTTP divided by that of the bare engine. The bare engine
            has all cores; served instances share them less one, as shipped. Goal: 0.70.
cpu         CPU per streamed token of all processes, 64 streams, without the client. `paced`: a decode step takes 50 ms
            and computes nothing, so the figure is serving alone; goal 350 us. `model`: the real model, one thread per
            instance, with and without the CPU time of the executor's calls.
step        Python between two decode steps, from the end of one native call to the start of the next; goal 0.3 ms at
            batch 16.
pool        TTFT of a prompt of 2,048 tokens, 90 % of which another prefill instance has computed and published, divided
            by that of a new prompt; by default the random model of 372 M parameters. Goal: 0.25.

`--versus NAME=VALUE ...` instead runs two systems next to each other, one as it is and one with these fields of
`served.Setup` changed, and prints the ratio of their throughput: `timelines=0`, `memory_servers=1`, `server=serve`.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from serving.gateway.api.settings import ServedModel
from serving.ids import SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.live.engine_news import LoopEvent
from serving.model.config import read_architecture
from serving.model.size import weight_bytes
from serving.values.orders import Add
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.benchmarks.bare_engine import BLOCK_TOKENS, BareProcess, engine_loop, make_executor
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    random_prompts,
    report,
    show_conditions,
)
from tests.benchmarks.paced_serve import executor_s
from tests.benchmarks.served import Served, Setup
from tests.e2e.server import wait_for
from tests.fakes.engine_calls import EngineCalls

INSTANCES = {"disaggregated": 2, "aggregated": 1}
WARM_UP = 3
_WORDS = "the a little dog ran over hill and into garden there others were waiting for her red ball in sun".split()
SETTLE_S = 2.0
STEP_PROMPT, STEPS = 160, 400
POOL_TOKENS, POOL_SHARE = 2048, 0.9
PULLED, STORED = "cloudmatrix:prompt_tokens_pulled_total", "cloudmatrix:pool_stored_blocks_total"


def unique_prompt(model: ServedModel, tokens: int, seed: int) -> tuple[str, list[int]]:
    """A new text of about `tokens` tokens, and its ids."""
    rng = random.Random(seed)
    words, ids = [f"{seed}:"], list[int]()
    while len(ids) < tokens:
        words += [rng.choice(_WORDS) for _ in range(max(1, (tokens - len(ids)) // 4))]
        ids = model.tokenizer.encode(" ".join(words), add_special_tokens=True)
    return " ".join(words), ids


def ttft(folder: Path, args: argparse.Namespace) -> list[Figure]:
    """TTFT of bare engine and system in turns."""
    model = ServedModel.from_folder(folder, names=("bench",), max_model_len=1, created=0)
    found: dict[int, list[tuple[float, float]]] = {tokens: [] for tokens in args.tokens}

    async def measure(served: Served, bare: BareProcess) -> None:
        for tokens, pairs in found.items():
            progress(f"prompts of {tokens} tokens")
            for repeat in range(-WARM_UP, 8 * args.repeats):
                text, ids = unique_prompt(model, tokens, seed=tokens * 1000 + repeat)
                alone = bare.first_token_s(ids)
                await asyncio.sleep(0.02)  # torch's threads of the other side go to sleep
                record = await served.stream(text, 4, return_token_ids=True)
                pairs.append((alone * 1e3, record.ttft_s * 1e3))
                await asyncio.sleep(0.02)

    with (
        BareProcess(folder, args.dtype, 1, kv_tokens=4096) as bare,
        Served(Setup(folder, threads=1, dtype=args.dtype)) as served,
    ):
        asyncio.run(measure(served, bare))
    figures = []
    for tokens, pairs in found.items():
        alone, through = zip(*pairs[WARM_UP:], strict=True)
        added = tuple(b - a for a, b in pairs[WARM_UP:])
        figures.append(Figure(f"TTFT bare, {tokens} tokens", "ms", alone))
        figures.append(Figure(f"TTFT served, {tokens} tokens", "ms", through))
        figures.append(Figure(f"TTFT added by serving, {tokens} tokens", "ms", added, goal=15.0))
    return figures


def throughput(model: Path, args: argparse.Namespace) -> list[Figure]:
    """Tokens per second of the bare engine and of one system per mode, in turns."""
    tokens, cores = args.streams * args.output, os.cpu_count() or 1
    vocab_size = read_architecture(model).vocab_size
    room = args.streams * (args.prompt + args.output + 32) + 512
    figures = []
    with BareProcess(model, args.dtype, cores, room) as bare:
        for mode, instances in INSTANCES.items():
            setup = Setup(model, mode=mode, threads=max(1, (cores - 1) // instances), dtype=args.dtype)
            alone, through = [], []
            with Served(setup) as served:
                for repeat in range(-1, args.repeats):  # the first one warms up
                    batch = random_prompts(args.streams, args.prompt, vocab_size, seed=repeat)
                    alone.append(tokens / bare.generate_s(batch, args.output))
                    through.append(tokens / served.batch_s(batch, args.output))
                    progress(f"{mode}: bare {alone[-1]:.0f}, served {through[-1]:.0f} tokens/s")
            ratios = tuple(b / a for a, b in zip(alone[1:], through[1:], strict=True))
            figures.append(Figure(f"{mode}: bare, {cores} threads", "tokens/s", tuple(alone[1:])))
            figures.append(Figure(f"{mode}: served", "tokens/s", tuple(through[1:])))
            figures.append(Figure(f"{mode}: served / bare", "", ratios, goal=0.70, at_most=False))
    return figures


def versus(model: Path, args: argparse.Namespace) -> list[Figure]:
    """Throughput of a system with changed settings divided by that of one without, in turns."""
    types = {one.name: one.type for one in fields(Setup)}
    setup = Setup(model, threads=1, dtype=args.dtype)
    pairs = [one.partition("=") for one in args.versus]
    changed = {name: int(value) if types[name] is int else value for name, _, value in pairs}
    vocab_size = read_architecture(model).vocab_size
    ratios = []
    with Served(setup) as plain, Served(replace(setup, **changed)) as other:  # type: ignore[arg-type] # names of fields
        for repeat in range(-1, 3 * args.repeats):
            batch = random_prompts(args.streams, args.prompt, vocab_size, seed=repeat)
            order = (other, plain) if repeat % 2 else (plain, other)
            took = {system.port: system.batch_s(batch, args.output) for system in order}
            ratios.append(took[plain.port] / took[other.port])
            progress(f"turn {repeat + 1}: {ratios[-1]:.3f}, median {statistics.median(ratios):.3f}")
    return [Figure(f"{', '.join(args.versus)} / as shipped: tokens/s", "", tuple(ratios[1:]))]


@dataclass(frozen=True, slots=True)
class Window:
    """One measured interval: CPU seconds by role, and of the executors' calls among them."""

    seconds: float
    tokens: int
    by_role: Mapping[str, float]
    executor_s: float

    def us(self, seconds: float | None = None) -> float:
        """This many seconds per token, by default of all processes [us]."""
        return (sum(self.by_role.values()) if seconds is None else seconds) / self.tokens * 1e6


async def streaming_window(served: Served, meters: Path, streams: int, seconds: float) -> Window:
    """Open the streams, let them settle, measure, disconnect."""
    most = read_architecture(served.setup.model).max_position_embeddings - 64
    tasks = [asyncio.create_task(served.stream(f"Once upon a time there was {i}", most)) for i in range(streams)]
    clock, deadline = time.monotonic, time.monotonic() + 30.0
    try:
        while await asyncio.to_thread(served.metric, "cloudmatrix:gateway_requests") < streams:
            if clock() > deadline:
                raise RuntimeError(f"not all of {streams} streams run after 30 s")
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        begun, tokens = clock(), await asyncio.to_thread(served.metric, "vllm:generation_tokens_total")
        cpu, executor = served.cpu(), executor_s(meters)
        await asyncio.sleep(seconds)
        tokens = await asyncio.to_thread(served.metric, "vllm:generation_tokens_total") - tokens
        used = {role: after - cpu.get(role, 0.0) for role, after in served.cpu().items()}
        window = Window(clock() - begun, tokens, used, executor_s(meters) - executor)
        if any(task.done() for task in tasks):
            raise RuntimeError(f"streams ended early, after {most} tokens: take shorter windows")
        return window
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.0)


def cpu(model: Path, args: argparse.Namespace) -> list[Figure]:
    """Both lines, each of one system."""
    figures: list[Figure] = []
    for line, flags in (("paced", ["--step-ms", str(args.step_ms)]), ("model", [])):
        with tempfile.TemporaryDirectory() as folder:
            served = Served(Setup(model, threads=1), "tests.benchmarks.paced_serve", ["--meters", folder, *flags])
            with served:
                windows = []
                for _ in range(args.repeats):
                    windows.append(asyncio.run(streaming_window(served, Path(folder), args.streams * 2, args.seconds)))
                    progress(f"{line}: {windows[-1].us():.0f} us per token")
        rates = tuple(w.tokens / w.seconds for w in windows)
        own = tuple(w.us() - w.us(w.executor_s) for w in windows)
        figures.append(Figure(f"{line}: tokens/s", "tokens/s", rates))
        figures.append(Figure(f"{line}: all processes", "us/token", tuple(w.us() for w in windows)))
        figures.append(Figure(f"{line}: without the executor's calls", "us/token", own, goal=350.0))
        for role in sorted({role for w in windows for role in w.by_role}):
            parts = tuple(w.us(w.by_role.get(role, 0.0)) for w in windows)
            figures.append(Figure(f"{line}:   {role}", "us/token", parts))
    return figures


def gaps_s(model: Path, batch: int) -> list[float]:
    """Seconds between native calls of one run, while the whole batch decodes."""
    blocks = batch * -(-(STEP_PROMPT + STEPS + 64) // BLOCK_TOKENS) + 8
    executor, _ = make_executor(model, "native", "bfloat16", blocks, 1, 1024, 0)
    assert isinstance(executor, NativeExecutor)
    begun: list[float] = []
    ended: list[float] = []
    executor._engine.step = timed(executor._engine.step, begun, ended)  # type: ignore[method-assign]
    engine = EngineCalls(EngineSettings(EngineRole.AGGREGATED, BLOCK_TOKENS, 1024, batch), blocks)
    events: list[LoopEvent] = []
    loop = engine_loop(engine, executor, events.extend)
    for index in range(batch):
        prompt = tuple((index * 7 + position) % 4000 for position in range(STEP_PROMPT))
        sampling = SamplingParams(max_tokens=STEPS, temperature=0)
        loop.post(Add(SequenceSpec(SequenceId(str(index)), prompt, sampling)))
    loop.start()
    while not (engine.idle() and begun):
        time.sleep(0.02)
    loop.stop()
    middle = slice(STEPS // 4, STEPS // 4 * 3)  # all prompts are done, no sequence has ended
    return [after - before for before, after in list(zip(ended, begun[1:], strict=False))[middle]]


def timed(call: Callable[..., None], begun: list[float], ended: list[float]) -> Callable[..., None]:
    """The same call, with its times recorded."""

    def noting(*args: object) -> None:
        begun.append(time.perf_counter())
        call(*args)
        ended.append(time.perf_counter())

    return noting


def step(_model: Path, args: argparse.Namespace) -> list[Figure]:
    """Median gap per batch size, on the random model `tiny`."""
    found: dict[int, list[float]] = {1: [], 16: [], 32: []}
    with checkpoint(None, bundled=False) as model:
        for _ in range(args.repeats):
            for batch, medians in found.items():
                medians.append(1e3 * statistics.median(gaps_s(model, batch)))
                progress(f"between native calls, batch {batch}: {medians[-1]:.3f} ms")
    return [
        Figure(f"between native calls, batch {batch}", "ms", tuple(medians), 0.3 if batch == 16 else None)
        for batch, medians in found.items()
    ]


async def pulled_ms(served: Served, prompt: list[int], pulled: int) -> float:
    """TTFT of one prompt, of which this many tokens must come from the pool [ms]."""
    before = served.metric(PULLED)
    record = await served.stream(prompt, 1, return_token_ids=True)
    await asyncio.sleep(0.2)  # a request is counted when it is over
    if (came := served.metric(PULLED) - before) != pulled:
        raise RuntimeError(f"{pulled} tokens should have come from the pool, {came} did")
    return record.ttft_s * 1e3


def pool(folder: Path, args: argparse.Namespace) -> list[Figure]:
    """Two prefill instances take turns in an idle system: one publishes a prefix, the other pulls it."""
    warm, cold = [], []
    common = int(POOL_TOKENS * POOL_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS

    async def one_round(served: Served, vocab_size: int, seed: int) -> None:
        (known,) = random_prompts(1, POOL_TOKENS, vocab_size, seed)
        (new,) = random_prompts(1, POOL_TOKENS, vocab_size, seed + 1)
        stored = served.metric(STORED) + common // BLOCK_TOKENS
        await pulled_ms(served, known[:common], 0)
        await asyncio.to_thread(wait_for, lambda: served.metric(STORED) >= stored, "published blocks", 60.0)
        warm.append(await pulled_ms(served, known, common))
        cold.append(await pulled_ms(served, new, 0))
        await asyncio.sleep(1.5)  # its blocks are published before the next round counts
        progress(f"{warm[-1]:.0f} ms with {common} of {POOL_TOKENS} tokens pulled, {cold[-1]:.0f} ms without")

    with checkpoint(args.model, kind="small", bundled=False) as model:
        room = (weight_bytes(model, 4 if args.dtype == "float32" else 2) >> 20) * 3 // 2 + 1024
        setup = Setup(model, threads=1, dtype=args.dtype, prefills=2, memory_servers=1, memory_mib=room)
        with Served(setup) as served:
            vocab_size = read_architecture(model).vocab_size
            for repeat in range(args.repeats + 1):
                asyncio.run(one_round(served, vocab_size, 2 * repeat))
    ratios = tuple(a / b for a, b in zip(warm[1:], cold[1:], strict=True))
    return [
        Figure("TTFT, beginning pulled from the pool", "ms", tuple(warm[1:])),
        Figure("TTFT, all of it computed", "ms", tuple(cold[1:])),
        Figure("pulled / computed", "", ratios, goal=0.25),
    ]


MODES = {"ttft": ttft, "throughput": throughput, "cpu": cpu, "step": step, "pool": pool}


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_serving", __doc__, 4, MODES)
    parser.add_argument("--versus", nargs="+", metavar="NAME=VALUE", help="compare two systems instead")
    parser.add_argument("--streams", type=int, default=32, help="at once; twice as many in `cpu` (default 32)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt (default 64)")
    parser.add_argument("--output", type=int, default=128, help="tokens generated per stream (default 128)")
    parser.add_argument("--tokens", type=int, nargs="*", default=[32, 256, 768], help="ttft: prompt lengths")
    parser.add_argument("--seconds", type=float, default=10.0, help="cpu: length of a window (default 10)")
    parser.add_argument("--step-ms", type=float, default=50.0, help="cpu: duration of a paced step (default 50)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    wanted = [versus] if args.versus else [MODES[mode] for mode in args.modes or MODES]
    with checkpoint(args.model) as model:
        found = conditions(model, **{name: value for name, value in vars(args).items() if name != "model"})
        show_conditions(found)
        report("bench_serving", found, [figure for mode in wanted for figure in mode(model, args)])


if __name__ == "__main__":
    main()
