"""Matchers over a random checkpoint's own vocabulary, and requests for them."""

from pathlib import Path

from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.compile import Grammars
from serving.grammar.guidance import GuidanceRoute
from serving.grammar.matcher import Matchers
from serving.values.sequence import SamplingParams
from tests.live.workload import EOS, GRAMMARS, VOCAB


def matchers_of(folder: Path, route: GuidanceRoute | None = None) -> Matchers:
    """Matchers over the vocabulary of a checkpoint, which is read with the first grammar.

    Args:
        route: None = Python's.
    """
    return Matchers(Grammars(lambda: Tokenizer.from_folder(folder).vocabulary(VOCAB), route))


def grammar_sampling(number: int, most: int = 24) -> SamplingParams:
    """Each grammar in turn, greedy or sampled."""
    grammar = GRAMMARS[number % len(GRAMMARS)]
    temperature = 0.0 if number % 3 == 0 else 1.0
    return SamplingParams(max_tokens=most, temperature=temperature, seed=number, grammar=grammar, stop_token_ids=(EOS,))
