"""The plainest correct generator: one sequence, one token at a time, no engine, no batching.

It uses the model's *plain heads* only, even for single tokens, over one contiguous run of cache blocks, so that
absorbed attention, block tables, chunking and scheduling are all on the other side of a comparison. The tests of the
model compare it with transformers in turn.
"""

from pathlib import Path
from typing import Literal

import torch

from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.matcher import Matcher, limits_tokens, permitted
from serving.model.batch import ForwardBatch, PromptChunk, future_mask
from serving.model.host_sampler import Mask
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.sampler import sample
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder


class ReferenceGenerator:
    """Generates with a model in this process, alone.

    Args:
        folder: checkpoint; with a tokenizer if grammars are used.
        dtype: as in `load_model`.
        max_tokens: longest prompt plus output; default the model's context, at most 4096.
    """

    def __init__(
        self,
        folder: str | Path,
        dtype: Literal["auto", "float32", "bfloat16"] = "float32",
        *,
        max_tokens: int | None = None,
    ) -> None:
        self.model = load_model(folder, dtype=dtype)
        self.capacity = max_tokens or min(self.model.config.max_position_embeddings, 4096)
        self._grammars = Grammars(lambda: Tokenizer.from_folder(folder).vocabulary(self.model.config.vocab_size))
        self._cache = KvCache(self.model.config, 1, self.capacity, self.model.dtype)

    def generate(self, prompt_ids: list[int], sampling: SamplingParams) -> list[int]:
        """New tokens, including the stop token that ended them."""
        output: list[int] = []
        fed: list[int] = prompt_ids
        start = 0
        with torch.inference_mode():
            while len(output) < sampling.max_tokens:
                logits = self._feed(fed, start)[-1:]
                mask = self._mask(sampling, output)
                token = sample(logits, [SampleOrder(sampling, prompt_ids, output)], [mask])[0].token
                output.append(token)
                if token in sampling.stop_token_ids:
                    break
                start += len(fed)
                fed = [token]
        return output

    def _mask(self, sampling: SamplingParams, output: list[int]) -> Mask:
        """Tokens that the grammar allows after the output, found by a new matcher that reads all of it."""
        size = self.model.config.vocab_size
        limits = permitted(sampling, output, size) if limits_tokens(sampling) else None
        if sampling.grammar is None:
            return limits
        fresh, size = self._grammars.fresh(sampling.grammar), self._grammars.vocabulary.size
        matcher = Matcher(fresh, size, sampling.stop_token_ids)
        matcher.take(output)
        return matcher.allowed() if limits is None else matcher.allowed() & limits

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """`[tokens, vocab] float32` of a whole sequence in one pass."""
        with torch.inference_mode():
            return self._feed(tokens, 0)

    def _feed(self, tokens: list[int], start: int) -> torch.Tensor:
        positions = torch.arange(start, start + len(tokens))
        hidden = future_mask(len(tokens), self.model.dtype, self.model.device)
        runs = torch.zeros(1 if start else 0, dtype=torch.int64)
        chunk = PromptChunk(0, len(tokens), start, runs, hidden)
        # One block holds the whole context, so a position is its own slot.
        batch = ForwardBatch(torch.tensor(tokens), positions, positions, (), (chunk,))
        return self.model.logits(self.model.forward(batch, self._cache))
