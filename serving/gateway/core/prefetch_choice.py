"""Whether memory servers load a prompt's blocks from SSD before its request starts, so that reads overlap its wait."""

from serving.gateway.core.events import PrefetchKv
from serving.gateway.core.waiting_room import Job

LONG_TOKENS = 4096
"""A request that starts at once still waits at its instance if prompts are before it there. Only a long prefix is worth
a message then: below this it is read from SSD sooner than a step of prompts ends."""


def prefetches(job: Job, *, waits: bool) -> list[PrefetchKv]:
    """The prefixes of an arriving request to be loaded, each of its prompts once.

    Args:
        waits: whether it waits for its turn; then there is time for even a short prefix.
    """
    found: dict[int, PrefetchKv] = {}
    for choice in job.choices:
        spec = choice.journal.spec
        if spec.prompt_hashes and (waits or len(spec.prompt) >= LONG_TOKENS):
            found[id(spec.prompt_hashes)] = PrefetchKv(spec.namespace, spec.prompt_hashes)
    return [*found.values()]
