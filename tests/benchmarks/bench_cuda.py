"""The torch path on a GPU: decode against the memory-bandwidth floor, prefill against the bf16 peak, and transformers.

Decode: the bare engine with its recorded graphs, all sequences decoding together. Its floor is what one step must read
(weights of the experts that a batch of this size touches if its choices are spread evenly, everything else once) at the
bandwidth of a large copy on this device. Prefill: one prompt, its products' operations over those of a large bf16
product here. transformers: the same checkpoint, the same prompts, greedy, static cache as it chooses by itself.

`--device cpu` tries the script without a GPU; its figures mean little.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import DeepseekV3ForCausalLM

from serving.model.architecture import DenseShape, ExpertShape, LatentShape
from serving.model.config import read_architecture
from tests.benchmarks.bare_engine import BareEngine
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

CONTEXT, STEPS, PREFILL = 160, 64, 2048
BATCHES = (1, 16, 64)


class Weights:
    """Number of weights of a model with routed experts and latent attention."""

    def __init__(self, folder: Path) -> None:
        self.config = config = read_architecture(folder)
        assert config.experts is not None, "this benchmark is of a model with routed experts"
        assert isinstance(config.attention, LatentShape), "this benchmark is of latent attention"
        self.experts, self.shape, hidden = config.experts, config.attention, config.hidden_size
        self.expert_layers = sum(isinstance(layer.feed, ExpertShape) for layer in config.layers)
        self.expert = 3 * hidden * self.experts.width
        shape, query = self.shape, self.shape.query_latent or 0
        attention = hidden * (query + shape.row.elements) + (query or hidden) * shape.heads * shape.query_dim
        attention += shape.heads * shape.latent * (shape.nope_dim + shape.value_dim)
        attention += shape.heads * shape.value_dim * hidden
        dense = sum(3 * hidden * layer.feed.width for layer in config.layers if isinstance(layer.feed, DenseShape))
        shared = self.expert_layers * 3 * hidden * self.experts.shared_width
        self.common = len(config.layers) * attention + dense + shared
        """Those that every token uses, without the head."""

    def step_bytes(self, batch: int) -> float:
        """Bytes in bf16 that a decode step of so many sequences reads, experts chosen evenly."""
        experts = self.experts
        touched = experts.experts * (1 - (1 - experts.per_token / experts.experts) ** batch)
        head = self.config.vocab_size * self.config.hidden_size
        return 2 * (self.common + head + touched * self.expert_layers * self.expert)

    def prefill_operations(self, tokens: int) -> float:
        """Multiplications and additions of one prompt's products and attention."""
        active = self.common + self.experts.per_token * self.expert_layers * self.expert
        scores = self.shape.heads * (self.shape.query_dim + self.shape.value_dim) * tokens / 2
        return 2 * tokens * (active + len(self.config.layers) * scores)


def copy_bandwidth(device: str) -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.empty(1 << (30 if device == "cuda" else 27), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_s(lambda: target.copy_(source), device)


def product_rate(device: str) -> float:
    """Operations per second of a large bf16 product."""
    size = 8192 if device == "cuda" else 1024
    x = torch.randn(size, size, device=device).bfloat16()
    return 2 * size**3 / best_s(lambda: x @ x, device)


def best_s(work: Callable[[], object], device: str, repeats: int = 10) -> float:
    """The shortest time of some repeats [s]."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = []
    for _ in range(repeats):
        wait()
        begun = time.perf_counter()
        work()
        wait()
        found.append(time.perf_counter() - begun)
    return min(found)


def transformers_tokens_per_s(folder: Path, prompts: list[list[int]], device: str) -> float:
    """Decode speed of the reference implementation: the time of `STEPS` tokens less that of one."""
    model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    ids = torch.tensor(prompts, device=device)

    def generate_s(tokens: int) -> float:
        flags = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": False}
        return best_s(lambda: model.generate(ids, **flags), device, 2)

    generate_s(2)
    return len(prompts) * (STEPS - 1) / (generate_s(STEPS) - generate_s(1))


def measure(folder: Path, args: argparse.Namespace) -> list[Figure]:
    """All figures."""
    weights = Weights(folder)
    vocab_size = weights.config.vocab_size
    bandwidth, peak = copy_bandwidth(args.device), product_rate(args.device)
    progress(f"copy {bandwidth / 1e9:,.0f} GB/s, bf16 product {peak / 1e12:,.1f} TFLOP/s")
    engine = BareEngine(folder, "bfloat16", 2, 64 * 1024, "torch", PREFILL, device=args.device)
    figures = []
    for batch in BATCHES:
        prompts = random_prompts(batch, CONTEXT, vocab_size, seed=batch)
        ours = [engine.decode_tokens_per_s(prompts, STEPS) for _ in range(args.repeats)]
        theirs = transformers_tokens_per_s(folder, prompts, args.device)
        floor = weights.step_bytes(batch) / bandwidth
        figures += [
            Figure(f"decode, batch {batch}", "tokens/s", tuple(ours)),
            Figure(f"step / floor, batch {batch}", "", tuple(batch / rate / floor for rate in ours)),
            Figure(f"ours / transformers, batch {batch}", "", tuple(rate / theirs for rate in ours)),
        ]
        progress(f"batch {batch}: {max(ours):,.0f} tokens/s, transformers {theirs:,.0f}")
    _, *firsts = [engine.first_token_s(one) for one in random_prompts(args.repeats + 1, PREFILL, vocab_size, 0)]
    rates = tuple(weights.prefill_operations(PREFILL) / seconds / peak for seconds in firsts)
    return [*figures, Figure(f"prefill of {PREFILL} tokens / bf16 peak", "", rates)]


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_cuda", __doc__, 3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("bench_cuda: no CUDA device here, so nothing is measured; --device cpu tries the script without one")
        return
    with checkpoint(args.model, "small", bundled=False) as folder:
        name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        facts = conditions(folder, device=name, context=CONTEXT, steps=STEPS)
        show_conditions(facts)
        report("bench_cuda", facts, measure(folder, args))


if __name__ == "__main__":
    main()
