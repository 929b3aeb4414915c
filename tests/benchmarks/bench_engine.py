"""The bare engine: TorchExecutor on one checkpoint, decode by batch size and prefill by length.

    python -m tests.benchmarks.bench_engine [--model DIR] [--peer-python PATH]

Without `--model` the random `small` checkpoint is written to a temporary folder (372 M parameters, 0.7 GB).
Decode: every sequence holds `--context` tokens and gets one token per step, greedy. Prefill: one prompt in one chunk.
The fastest of the repeats is the figure (neighbours on the machine only ever slow a step down); the median is printed
beside it. With `--peer-python`, that interpreter's vLLM runs the same shapes just after and ratios are printed.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from serving.engine.torch_executor import TorchExecutor
from serving.ids import BlockId, SequenceId
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.model import DeepseekModel
from serving.policy.request import SamplingParams
from serving.policy.step_plan import SampleOrder, SequenceStep, StepPlan
from tests.model.random_checkpoint import write_random_checkpoint

BLOCK_TOKENS = 16
GOAL = 0.8
GOAL_SHAPES = ("decode batch 16", "prefill 2048")
GREEDY = SamplingParams(temperature=0, max_tokens=1 << 20)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured shape: tokens per second from the fastest and the median repeat."""

    name: str
    best: float
    median: float
    repeats: int


def decode(model: DeepseekModel, batch: int, context: int, seconds: float) -> Figure:
    """Decode steps of `batch` sequences around `context` tokens."""
    blocks = -(-(context + 1) // BLOCK_TOKENS)
    executor = TorchExecutor(model, KvCache(model.config, batch * blocks, BLOCK_TOKENS, model.dtype))
    prompts = torch.randint(8, model.config.vocab_size, (batch, context)).tolist()
    tables = [[BlockId(row * blocks + b) for b in range(blocks)] for row in range(batch)]
    for row in range(batch):
        executor.execute(StepPlan(0, (SequenceStep(SequenceId("p"), prompts[row], 0, tables[row], None),)))
    plan = StepPlan(
        1,
        tuple(
            SequenceStep(SequenceId(str(row)), [9 + row], context, tables[row], SampleOrder(GREEDY, prompts[row], []))
            for row in range(batch)
        ),
    )
    times = repeat(lambda: executor.execute(plan), seconds)
    return Figure(f"decode batch {batch}", batch / min(times), batch / statistics.median(times), len(times))


def prefill(model: DeepseekModel, tokens: int, seconds: float) -> Figure:
    """One prompt of `tokens` in one step, first token sampled."""
    blocks = -(-tokens // BLOCK_TOKENS)
    executor = TorchExecutor(model, KvCache(model.config, blocks, BLOCK_TOKENS, model.dtype))
    prompt = torch.randint(8, model.config.vocab_size, (tokens,)).tolist()
    table = [BlockId(b) for b in range(blocks)]
    plan = StepPlan(0, (SequenceStep(SequenceId("p"), prompt, 0, table, SampleOrder(GREEDY, prompt, [])),))
    times = repeat(lambda: executor.execute(plan), seconds)
    return Figure(f"prefill {tokens}", tokens / min(times), tokens / statistics.median(times), len(times))


def repeat(step: Callable[[], object], seconds: float) -> list[float]:
    """Durations [s] of repeats within a time budget, at least three, after two to warm up."""
    step()
    step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    return times


def peer(python: Path, args: argparse.Namespace) -> dict[str, Figure]:
    """vLLM's figures for the same shapes, from its own interpreter."""
    script = Path(__file__).with_name("peer_vllm_cpu.py")
    command = [str(python), str(script), "--model", str(args.model), "--threads", str(args.threads)]
    command += ["--batch", *map(str, args.batch), "--prefill", *map(str, args.prefill), "--context", str(args.context)]
    command += ["--dtype", args.dtype, "--seconds", str(args.seconds)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        sys.exit(f"the peer failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {f["name"]: Figure(**f) for f in found}


def report(figures: Sequence[Figure], peers: dict[str, Figure]) -> None:
    print(
        f"{'tokens/s':<18}{'best':>10}{'median':>10}{'repeats':>9}"
        + ("   vLLM best    median   ratio" if peers else "")
    )
    for f in figures:
        line = f"{f.name:<18}{f.best:>10.0f}{f.median:>10.0f}{f.repeats:>9}"
        other = peers.get(f.name)
        if other is not None:
            line += f"{other.best:>12.0f}{other.median:>10.0f}{f.best / other.best:>8.2f}"
            line += f"  goal >= {GOAL}" if f.name in GOAL_SHAPES else ""
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the bare engine.")
    parser.add_argument("--model", type=Path, help="checkpoint (default: a random one of kind small)")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--context", type=int, default=160, help="tokens each decoding sequence holds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=4.0, help="time budget of each shape")
    parser.add_argument("--peer-python", type=Path, help="an interpreter with vLLM for CPU, to compare with")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, last line")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if args.model is None:
            args.model = write_random_checkpoint(temporary, kind="small", dtype="bfloat16")
        run(args)


def run(args: argparse.Namespace) -> None:
    """Measure everything asked for and print it."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, load {load:.1f} at the start; torch")
    print(f"{torch.__version__}, {args.threads} threads, {args.dtype}, {args.context} tokens of context, {args.model}")
    model = load_model(args.model, dtype=args.dtype)
    figures = [decode(model, batch, args.context, args.seconds) for batch in args.batch]
    figures += [prefill(model, tokens, args.seconds) for tokens in args.prefill]
    peers = peer(args.peer_python, args) if args.peer_python else {}
    report(figures, peers)
    if args.json:
        print(json.dumps([asdict(f) for f in figures]))


if __name__ == "__main__":
    main()
