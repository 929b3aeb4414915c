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

from serving.model.architecture import Architecture, DenseShape, ExpertShape, LatentShape
from serving.model.config import read_architecture
from tests.benchmarks.bare_engine import BareEngine
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions

CONTEXT, STEPS = 160, 64
BATCHES = (1, 16, 64)
PREFILL = 2048
_BF16 = 2


def weights_read(config: Architecture, batch: int) -> float:
    """Bytes of weights that a decode step of so many sequences reads, experts chosen evenly."""
    experts = _experts(config)
    touched = experts.experts * (1 - (1 - experts.per_token / experts.experts) ** batch)
    return _BF16 * (_common(config) + touched * _expert_layers(config) * _expert(config))


def prefill_operations(config: Architecture, tokens: int) -> float:
    """Multiplications and additions of one prompt's products and attention."""
    active = _common(config) - config.vocab_size * config.hidden_size
    active += _experts(config).per_token * _expert_layers(config) * _expert(config)
    shape = _latent(config)
    scores = shape.heads * (shape.query_dim + shape.value_dim) * tokens / 2
    return 2 * tokens * (active + len(config.layers) * scores)


def _common(config: Architecture) -> int:
    """Weights that every token uses: attention, dense and shared nets, head."""
    shape, hidden = _latent(config), config.hidden_size
    query = shape.query_latent or 0
    attention = hidden * (query + shape.row.elements) + (query or hidden) * shape.heads * shape.query_dim
    attention += shape.heads * shape.latent * (shape.nope_dim + shape.value_dim)
    attention += shape.heads * shape.value_dim * hidden
    dense = sum(3 * hidden * layer.feed.width for layer in config.layers if isinstance(layer.feed, DenseShape))
    shared = _expert_layers(config) * 3 * hidden * _experts(config).shared_width
    return len(config.layers) * attention + dense + shared + config.vocab_size * hidden


def _expert_layers(config: Architecture) -> int:
    return sum(isinstance(layer.feed, ExpertShape) for layer in config.layers)


def _expert(config: Architecture) -> int:
    return 3 * config.hidden_size * _experts(config).width


def _experts(config: Architecture) -> ExpertShape:
    assert config.experts is not None, "this benchmark is of a model with routed experts"
    return config.experts


def _latent(config: Architecture) -> LatentShape:
    assert isinstance(config.attention, LatentShape), "this benchmark is of latent attention"
    return config.attention


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
    found = []
    for _ in range(repeats):
        synchronise(device)
        begun = time.perf_counter()
        work()
        synchronise(device)
        found.append(time.perf_counter() - begun)
    return min(found)


def synchronise(device: str) -> None:
    """Wait until the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def prompts(config: Architecture, batch: int, length: int) -> list[list[int]]:
    """Random prompts, the same each time."""
    generator = torch.Generator().manual_seed(batch)
    found: list[list[int]] = torch.randint(6, config.vocab_size, (batch, length), generator=generator).tolist()
    return found


def transformers_tokens_per_s(folder: Path, config: Architecture, batch: int, device: str) -> float:
    """Decode speed of the reference implementation: the time of `STEPS` tokens less that of one."""
    model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device)
    ids = torch.tensor(prompts(config, batch, CONTEXT), device=device)

    def generate(tokens: int) -> object:
        return model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)

    generate(2)
    return batch * (STEPS - 1) / (best_s(lambda: generate(STEPS), device, 2) - best_s(lambda: generate(1), device, 2))


def measure(folder: Path, args: argparse.Namespace) -> list[Figure]:
    """All figures."""
    config = read_architecture(folder)
    bandwidth, peak = copy_bandwidth(args.device), product_rate(args.device)
    progress(f"copy {bandwidth / 1e9:,.0f} GB/s, bf16 product {peak / 1e12:,.1f} TFLOP/s")
    engine = BareEngine(folder, "bfloat16", 2, 64 * 1024, "torch", PREFILL, device=args.device)
    figures = []
    for batch in BATCHES:
        ours = [engine.decode_tokens_per_s(prompts(config, batch, CONTEXT), STEPS) for _ in range(args.repeats)]
        theirs = transformers_tokens_per_s(folder, config, batch, args.device)
        floor = weights_read(config, batch) / bandwidth
        figures += [
            Figure(f"decode, batch {batch}", "tokens/s", tuple(ours)),
            Figure(f"step / floor, batch {batch}", "", tuple(batch / rate / floor for rate in ours)),
            Figure(f"ours / transformers, batch {batch}", "", tuple(rate / theirs for rate in ours)),
        ]
        progress(f"batch {batch}: {max(ours):,.0f} tokens/s, transformers {theirs:,.0f}")
    engine.first_token_s(prompts(config, 1, PREFILL)[0][1:])
    firsts = [engine.first_token_s([repeat + 6, *prompts(config, 1, PREFILL)[0][1:]]) for repeat in range(args.repeats)]
    rates = tuple(prefill_operations(config, PREFILL) / seconds / peak for seconds in firsts)
    return [*figures, Figure(f"prefill of {PREFILL} tokens / bf16 peak", "", rates)]


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_cuda", __doc__, repeats=3)
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
