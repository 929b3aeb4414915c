"""Checks of the fabric's books. Internal to this package."""

import math
from collections.abc import Iterable, Mapping

from hardware.fabric.flow import Flow, Pipe
from hardware.fabric.routes import TransferId

_SLACK = 1e-9
"""Relative: rates are sums and differences of floating-point numbers."""


def audit(pipes: Iterable[Pipe], flows: Mapping[TransferId, Flow], ends: list[tuple[float, TransferId]]) -> None:
    """Asserts that the books agree and that the rates are max-min fair.

    Fair means: each transfer has its own cap, or crosses a full link on which no transfer has a higher rate. No other
    allocation has that property, so this is a check of the result that does not repeat the algorithm.
    """
    foretold = set(ends)
    for pipe in pipes:
        used = sum(flow.rate for flow in pipe.flows)
        assert used <= pipe.capacity * (1 + _SLACK), f"{pipe.name} carries {used} of {pipe.capacity} bytes/s"
        assert all(flows.get(flow.name) is flow for flow in pipe.flows), (
            f"{pipe.name} carries a transfer that no longer exists"
        )
    for name, flow in flows.items():
        assert all(flow in pipe.flows for pipe in flow.pipes), f"{name} is missing on one of its links"
        assert 0 <= flow.rate <= flow.cap, f"{name} has {flow.rate} bytes/s, its cap is {flow.cap}"
        assert 0 <= flow.remaining <= flow.nbytes, f"{name} has {flow.remaining} of {flow.nbytes} bytes left"
        assert _has_its_share(flow), f"{name} could have more than {flow.rate} bytes/s"
        assert flow.rate > 0 or any(pipe.capacity == 0 for pipe in flow.pipes), f"{name} starves"
        assert flow.end == math.inf or (flow.end, name) in foretold, f"the end of {name} will not be reported"


def _has_its_share(flow: Flow) -> bool:
    if flow.rate >= flow.cap * (1 - _SLACK):
        return True
    return any(_full(pipe) and flow.rate >= _most(pipe) * (1 - _SLACK) for pipe in flow.pipes)


def _full(pipe: Pipe) -> bool:
    return sum(flow.rate for flow in pipe.flows) >= pipe.capacity * (1 - _SLACK)


def _most(pipe: Pipe) -> float:
    return max(flow.rate for flow in pipe.flows)
