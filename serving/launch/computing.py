"""Names and speeds of the compute devices of a system's instances, for the text printed at a start."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import ray

from serving.cluster.membership import CALL_DEADLINE_S, membership

logger = logging.getLogger(__name__)


def computing_line(facts: Iterable[Mapping[str, Any]]) -> str:
    """Name of the compute device, with the speed of its slowest instance; empty if no instance announces it.

    Args:
        facts: announced by instances.
    """
    speeds: dict[str, list[float]] = {}
    for one in facts:
        if (name := one.get("computes")) is not None:
            speeds.setdefault(name, []).extend(filter(None, [one.get("probe_tokens_per_s")]))
    return "; ".join(
        f"{name}{f', {min(rates):,.0f} tokens/s for one request' if rates else ''}"
        for name, rates in sorted(speeds.items())
    )


def computing_here() -> str:
    """`computing_line` of the system on the connected Ray; empty if no gateway responds."""
    try:
        members = ray.get(membership().members.remote(), timeout=CALL_DEADLINE_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        logger.info("membership does not respond (%s)", type(error).__name__)
        return ""
    return computing_line(member.facts for member in members)
