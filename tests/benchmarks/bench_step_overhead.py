"""What Python takes between two decode steps: from the end of one native call to the beginning of the next.

The engine loop that serves runs by itself over the random model `tiny` in bfloat16, with as many sequences as the
batch; each native call notes when it begins and ends. The next step is planned and laid out while one runs, and what
that gave is booked while the next one runs; in between lies reading the tokens and filling them in. Goal: a median of
at most 0.3 ms at batch 16.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from hardware.clock import WallClock
from serving.ids import ReplicaId, SequenceId
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.live.engine_loop import EngineLoop
from serving.instance.live.engine_news import LoopNews
from serving.values.orders import Add
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.benchmarks.bare_engine import BLOCK_TOKENS, make_executor
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.fakes.engine_calls import EngineCalls
from tests.fakes.executor import FakeExecutor
from tests.fakes.transport import FakeFabric, FakeTransport

GOAL_MS = 0.3
PROMPT_TOKENS, STEPS = 160, 400
BATCHES = (1, 16, 32)


def gaps_s(model: Path, batch: int, threads: int) -> list[float]:
    """Seconds between native calls of one run, while the whole batch decodes."""
    blocks = batch * -(-(PROMPT_TOKENS + STEPS + 64) // BLOCK_TOKENS) + 8
    executor, _ = make_executor(model, "native", "bfloat16", blocks, threads, 1024, 0)
    assert isinstance(executor, NativeExecutor)
    begun: list[float] = []
    ended: list[float] = []
    executor._engine.step = timed(executor._engine.step, begun, ended)  # type: ignore[method-assign]
    settings = EngineSettings(EngineRole.AGGREGATED, BLOCK_TOKENS, 1024, batch)
    engine = EngineCalls(settings, blocks)
    transport = FakeTransport(FakeFabric(), ReplicaId("bench"), FakeExecutor(1, BLOCK_TOKENS))
    told: list[LoopNews] = []
    loop = EngineLoop(engine, executor, transport, WallClock(), told.extend)
    for index in range(batch):
        prompt = tuple((index * 7 + position) % 4000 for position in range(PROMPT_TOKENS))
        one = SequenceSpec(SequenceId(str(index)), prompt, SamplingParams(max_tokens=STEPS, temperature=0))
        loop.post(Add(one))
    loop.start()
    while not (engine.idle() and begun):
        time.sleep(0.02)
    loop.stop()
    middle = slice(STEPS // 4, STEPS // 4 * 3)  # all prompts are done, no sequence has ended
    return [after - before for before, after in list(zip(ended, begun[1:], strict=False))[middle]]


def timed(call: Callable[..., None], begun: list[float], ended: list[float]) -> Callable[..., None]:
    """The same call, its times noted."""

    def noting(*args: object) -> None:
        begun.append(time.perf_counter())
        call(*args)
        ended.append(time.perf_counter())

    return noting


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_step_overhead", __doc__, repeats=5)
    parser.add_argument("--threads", type=int, default=1, help="of the native step (default 1)")
    args = parser.parse_args()
    found: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    with checkpoint(args.model, bundled=False) as model:
        facts = conditions(model, threads=args.threads, prompt_tokens=PROMPT_TOKENS, steps=STEPS)
        show_conditions(facts)
        for repeat in range(args.repeats):
            for batch, medians in found.items():
                medians.append(1e3 * statistics.median(gaps_s(model, batch, args.threads)))
                progress(f"repeat {repeat + 1}: batch {batch}")
    figures = [
        Figure(f"between native calls, batch {batch}", "ms", tuple(medians), GOAL_MS if batch == 16 else None)
        for batch, medians in found.items()
    ]
    report("bench_step_overhead", facts, figures)


if __name__ == "__main__":
    main()
