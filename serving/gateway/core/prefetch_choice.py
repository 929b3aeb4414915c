"""Which prompts' blocks memory servers load from SSD before their requests start, so that reads overlap the wait."""

from serving.gateway.core.events import PrefetchKv
from serving.gateway.core.waiting_room import Job, WaitingRoom

LONG_TOKENS = 4096
"""A request that starts at once still waits at its instance if prompts are before it there. Only a long prefix is worth
a message then: below this it is read from SSD sooner than a step of prompts ends."""


NEXT = 4
"""Requests at the front of the queue whose prefixes are loaded. With more of them, those that start later could push
the others' blocks out of a small memory again before their turn."""


def prefetches(room: WaitingRoom, arrived: Job | None = None) -> list[PrefetchKv]:
    """The prefixes to be loaded now: of the next requests to start, each once.

    Args:
        arrived: a request that has just arrived; if it has started already, its prompt counts if it is long.
    """
    jobs = [job for job in room.upcoming(NEXT) if not job.prefetched]
    if arrived is not None and not arrived.closed and room.find(arrived.number) is None:
        jobs += [arrived] if arrived.longest_prompt >= LONG_TOKENS and not arrived.prefetched else []
    found: dict[int, PrefetchKv] = {}
    for job in jobs:
        job.prefetched = True
        for choice in job.choices:
            spec = choice.journal.spec
            if spec.prompt_hashes:  # choices of a prompt share it
                found[id(spec.prompt_hashes)] = PrefetchKv(spec.namespace, spec.prompt_hashes)
    return [*found.values()]
