"""Work for ranks whose experts move."""

from random import Random

from serving.ids import SequenceId
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import prompts


def requests(ranks: int, each: int) -> list[list[SequenceSpec]]:
    """Work for every rank."""
    rng = Random(8)
    greedy = SamplingParams(max_tokens=60, temperature=0.0)
    return [
        [SequenceSpec(SequenceId(f"{rank}-{n}"), tuple(prompt), greedy) for n, prompt in enumerate(prompts(each, rng))]
        for rank in range(ranks)
    ]
