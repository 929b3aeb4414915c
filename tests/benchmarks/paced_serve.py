"""`cloudmatrix serve` with another step executor in its instances; all other parts are the product's.

    python -m tests.benchmarks.paced_serve --config FILE --meters DIR [--step-ms 50]

With `--step-ms` a decode step takes that long, without computing, and returns fixed tokens: a model that streams at a
steady pace on any machine. Without it the real executor runs. In both cases each instance records in DIR the CPU time
of its executor's calls, so that a benchmark can subtract the computation.
"""

import argparse
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any

from serving.instance.core.ports import StepExecutor
from serving.values.step_plan import SequenceResult, StepPlan, StepResult

PREFILL_STEP_S = 0.002
_METER = struct.Struct("<d")  # CPU seconds
_TEXT = " and then the little dog ran over the hill and into the garden, there the others were waiting for the ball."


class PacedExecutor:
    """A `StepExecutor` that only waits: steps start at least `step_s` apart."""

    def __init__(self, step_s: float, tokens: tuple[int, ...]) -> None:
        self._step_s = step_s
        self._tokens = tokens
        self._free_at = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        """Wait for the end of the step; each sampled position gets the next word of a fixed text."""
        begun = time.perf_counter()
        self._free_at = max(self._free_at, begun) + self._step_s
        time.sleep(max(0.0, self._free_at - begun))
        tokens = self._tokens
        results = tuple(
            SequenceResult(s.sequence_id)
            if s.sample is None
            else SequenceResult(s.sequence_id, (tokens[len(s.sample.output) % len(tokens)],))
            for s in plan.sequences
        )
        return StepResult(plan.step, results, time.perf_counter() - begun)


class MeteredExecutor:
    """Passes steps on and updates the record."""

    def __init__(self, inner: StepExecutor, path: Path) -> None:
        path.write_bytes(bytes(_METER.size))
        with path.open("r+b") as file:
            self._note = mmap.mmap(file.fileno(), _METER.size)
        self._inner = inner
        self._cpu_s = 0.0

    def execute(self, plan: StepPlan) -> StepResult:
        begun = time.thread_time()
        try:
            return self._inner.execute(plan)
        finally:
            self._cpu_s += time.thread_time() - begun
            _METER.pack_into(self._note, 0, self._cpu_s)


def executor_s(folder: Path) -> float:
    """CPU seconds that the executors of all instances have used so far."""
    return sum(_METER.unpack(path.read_bytes())[0] for path in folder.glob("*.meter"))


def _instance_class(meters: Path, step_s: float | None, tokens: tuple[int, ...]) -> Any:
    """A replica class with another executor. Defined in a function, so that Ray sends it by value, options included."""
    from serving.instance.live.replica import InstanceDeployment

    class BenchmarkInstance(InstanceDeployment):
        async def __init__(self, config: Any, pool: str, *rest: Any) -> None:  # type: ignore[misc]  # as its base
            import os

            from tests.benchmarks.paced_serve import PREFILL_STEP_S, MeteredExecutor, PacedExecutor

            await super().__init__(config, pool, *rest)
            loop = self._instance.loop  # no request has come yet: the executor may still change
            if step_s is not None:
                loop._executor = PacedExecutor(PREFILL_STEP_S if pool == "prefill" else step_s, tokens)
            loop._preparing = None
            loop._executor = MeteredExecutor(loop._executor, meters / f"{pool}-{os.getpid()}.meter")

    return BenchmarkInstance


def main() -> int:
    """Serve until interrupted, as `cloudmatrix serve` does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--meters", type=Path, required=True, metavar="DIR")
    parser.add_argument("--step-ms", type=float, help="duration of a decode step; without it the model is computed")
    args = parser.parse_args()

    from serving.config.load import load_config, with_overrides
    from serving.gateway.api.settings import ServedModel

    config = with_overrides(load_config(args.config), port=args.port)
    model = ServedModel.from_folder(config.model.path, names=("bench",), max_model_len=1, created=0)
    tokens = tuple(model.tokenizer.encode(_TEXT, add_special_tokens=False))
    from serving.cluster.session import enter

    session = enter()  # before Ray is imported, which reads the environment
    from serving.launch import app
    from serving.launch.launch import serve_forever

    step_s = None if args.step_ms is None else args.step_ms / 1e3
    replaced: Any = app
    replaced.InstanceDeployment = _instance_class(args.meters, step_s, tokens)
    return serve_forever(config, session)


if __name__ == "__main__":
    sys.exit(main())
