"""What a decision log costs: `python -m tests.benchmarks.bench_decision_log [sequences] [prompt tokens]`.

One decode batch, step after step, with a fake executor: the time of the engine's calls with and without a record, the
time that the writer's own thread takes to turn them into bytes, their size, and the speed of a replay.
"""

import statistics
import sys
import time
from collections import deque
from typing import Any

from serving.instance.core.record import recorded
from serving.instance.core.settings import EngineSettings
from serving.tools.replay import replay_log
from serving.values.decision_log import LogEncoder
from serving.values.step_plan import SequenceResult, StepResult
from tests.fakes.engine_calls import EngineCalls
from tests.instance.bench import spec
from tests.instance.decision_logs import MemoryLog

STEPS = 300


def batch(sequences: int, prompt: int, settings: EngineSettings) -> EngineCalls:
    """An engine with that many prompts waiting."""
    blocks = sequences * (-(-(prompt + STEPS) // settings.block_tokens) + 2)
    return EngineCalls(settings, blocks)


def run(engine: Any, sequences: int, prompt: int) -> tuple[float, int]:
    """Decode. Returns: microseconds in the engine's calls of a step, the median, and steps."""
    for number in range(sequences):
        engine.add(spec(f"gateway-{number}/0@1", tuple(range(number, number + prompt)), max_tokens=STEPS), 0.0)
    spent: list[float] = []
    steps = 0
    while not engine.idle():
        begun = time.perf_counter()
        plan = engine.next_action(float(steps)).plan
        planning_s = time.perf_counter() - begun
        assert plan is not None
        given = tuple(SequenceResult(s.sequence_id, (steps,) if s.sample else ()) for s in plan.sequences)
        begun = time.perf_counter()
        engine.step_finished(StepResult(plan.step, given, 0.01), float(steps))
        engine.take_events()
        spent.append(planning_s + time.perf_counter() - begun)
        steps += 1
    return statistics.median(spent) * 1e6, steps


def main(sequences: int = 32, prompt: int = 1024) -> None:
    """Print the figures."""
    settings = EngineSettings(
        max_step_tokens=8192, max_sequences=sequences, max_waiting=sequences, max_model_len=prompt + STEPS + 1
    )
    plain_us, steps = run(batch(sequences, prompt, settings), sequences, prompt)
    newest: deque[object] = deque(maxlen=64)
    engine = batch(sequences, prompt, settings)
    engine.driven = recorded(engine, lambda *pair: newest.append(pair))
    recorded_us, _ = run(engine, sequences, prompt)
    kept: list[tuple[Any, object]] = []
    engine = batch(sequences, prompt, settings)
    engine.driven = recorded(engine, lambda call, value: kept.append((call, value)))
    run(engine, sequences, prompt)
    encoder = LogEncoder()
    begun = time.perf_counter()
    size = sum(len(encoder.pair(*pair)) for pair in kept)
    encoding_s = time.perf_counter() - begun
    log = MemoryLog(batch(sequences, prompt, settings))
    run(log.engine, sequences, prompt)
    data = log.close()
    begun = time.perf_counter()
    assert replay_log(data, "log").identical
    replay_s = time.perf_counter() - begun
    tokens = sequences * STEPS
    print(f"{sequences} sequences of {prompt} + {STEPS} tokens, {steps} steps")
    print(f"engine alone          {plain_us:8.1f} us a step")
    print(f"recorded, same thread {recorded_us - plain_us:8.1f} us a step more")
    print(f"writer's thread       {encoding_s / steps * 1e6:8.1f} us a step")
    print(f"log                   {size / tokens:8.1f} bytes a token")
    print(f"replay                {replay_s / steps * 1e6:8.1f} us a step")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
