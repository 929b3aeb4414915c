"""How much a sequence's logits depend on the batch that it is decoded in.

    python -m tests.benchmarks.batch_exactness --model DIR

The same tokens are fed twice: all sequences in the same steps, and each alone. Reported per dtype: positions whose
logits have other bits, the largest difference, and positions whose greedy token differs.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from serving.model.loader import load_model
from tests.model.paged import PagedRunner


def compare(model_folder: Path, dtype: str, sequences: int, new_tokens: int) -> None:
    """Prefill whole prompts one by one, then decode together and alone."""
    model = load_model(model_folder, dtype="float32" if dtype == "float32" else "bfloat16")
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 200, (sequences,), generator=generator).tolist()
    prompts = [torch.randint(8, model.config.vocab_size, (n,), generator=generator).tolist() for n in lengths]
    together = PagedRunner(model, num_blocks=20 * sequences, block_tokens=16)
    alone = PagedRunner(model, num_blocks=20 * sequences, block_tokens=16, seed=1)
    names = [str(i) for i in range(sequences)]
    pieces = list(zip(names, prompts, strict=True))
    tokens = [[pick(logits[0][-1])] for logits in ([together.step([p])[0]] for p in pieces)]
    for piece in pieces:
        alone.step([piece])
    bits = greedy = 0
    largest = 0.0
    for _ in range(new_tokens):
        found = together.step(list(zip(names, tokens, strict=True)))
        for name, fed, logits in zip(names, tokens, found, strict=True):
            lone = alone.step([(name, fed)])[0]
            bits += not torch.equal(lone, logits)
            greedy += pick(lone[-1]) != pick(logits[-1])
            largest = max(largest, float((lone - logits).abs().max()))
        tokens = [[pick(logits[-1])] for logits in found]
    total = sequences * new_tokens
    print(f"{dtype}: {total} positions in batches of {sequences}: other bits {bits}, other greedy token {greedy}")
    print(f"  largest difference {largest:.2e}, logits' deviation {float(found[0].std()):.2f}")


def pick(logits: Tensor) -> int:
    return int(logits.argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare decoding alone and in a batch.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for dtype in ("float32", "bfloat16"):
        compare(args.model, dtype, args.sequences, args.tokens)


if __name__ == "__main__":
    main()
