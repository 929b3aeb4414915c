"""Several gateways decide on the same stale views, without herding.

Four gateways get 200 requests at once, before any of them receives the effects of the others. Each has the same old
views and the record of its own routes.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from zlib import crc32

import pytest
from msgspec.structs import replace

from serving.gateway.core.gateway_router import GatewayRouter
from serving.gateway.core.route_decision import InstanceView, Rule
from serving.ids import NodeId, ReplicaId

GATEWAYS = 4
BURST = 200
TOKENS = 1000

Choice = Callable[[Sequence[InstanceView]], ReplicaId]


def views(*queued: int) -> list[InstanceView]:
    """Prefill or decode instances with this many queued tokens, and one sequence per thousand of them."""
    return [
        InstanceView(
            ReplicaId(f"i{n}"), "p", NodeId("n"), q, q // TOKENS, 10_000 - q // 16, 10_000, gateways=GATEWAYS,
        )
        for n, q in enumerate(queued)
    ]  # fmt: skip


def naive(stale: Sequence[InstanceView]) -> ReplicaId:
    """The least loaded instance by the last report."""
    return min(stale, key=lambda view: (view.queued_tokens, view.replica)).replica


def spread(start: Sequence[InstanceView], choose: list[Choice], own: bool = True) -> dict[ReplicaId, int]:
    """Number of requests per instance; `own`: gateways count their own routes."""
    known = [list(start) for _ in range(GATEWAYS)]
    got: Counter[ReplicaId] = Counter({view.replica: 0 for view in start})
    for request in range(BURST):
        gateway = request % GATEWAYS
        chosen = choose[gateway](known[gateway])
        got[chosen] += 1
        if own:
            known[gateway] = [
                view
                if view.replica != chosen
                else replace(
                    view,
                    reserved_tokens=view.reserved_tokens + TOKENS,
                    reserved_sequences=view.reserved_sequences + 1,
                    reserved_blocks=view.reserved_blocks + TOKENS // 16,
                )
                for view in known[gateway]
            ]
    return dict(got)


def gateways(rule: Rule, role: str) -> list[Choice]:
    routers = [GatewayRouter(9.0, 16, rule=rule, seed=crc32(f"gateway-{n}".encode())) for n in range(GATEWAYS)]
    if role == "prefill":
        return [lambda seen, router=router: router.prefill(seen, TOKENS).replica for router in routers]  # type: ignore[misc]
    return [lambda seen, router=router: router.decode(seen, TOKENS // 16).replica for router in routers]  # type: ignore[misc]


def worst(start: Sequence[InstanceView], got: dict[ReplicaId, int]) -> float:
    """The fullest instance after the burst, relative to the mean."""
    loads = [view.queued_tokens + got[view.replica] * TOKENS for view in start]
    return max(loads) / (sum(loads) / len(loads))


@pytest.mark.parametrize("instances", [4, 8, 13])
def test_the_naive_rule_herds(instances: int) -> None:
    start = views(*[0] * instances)
    assert worst(start, spread(start, [naive] * GATEWAYS, own=False)) == instances


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("rule", ["load", "power_of_two", "round_robin"])
@pytest.mark.parametrize("instances", [4, 8, 13])
def test_equal_instances_get_equal_shares(rule: Rule, role: str, instances: int) -> None:
    start = views(*[0] * instances)
    assert worst(start, spread(start, gateways(rule, role))) <= 1.3


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_instance_that_looks_idle_is_filled_by_all_together(role: str) -> None:
    """An instance has just started: every gateway sees zero load, and together they would fill it four times over."""
    start = views(0, *[30_000] * 7)
    got = spread(start, gateways("load", role))
    assert worst(start, got) <= 1.15
    alone = spread([replace(view, gateways=1) for view in start], gateways("load", role))
    assert worst(start, alone) > 1.5, "each for itself, they overfill it"
    assert worst(start, got) < worst(start, alone)


def test_what_the_other_gateways_do_is_counted_in() -> None:
    start = views(0, 20_000)
    sent = gateways("load", "prefill")[0]
    known, alone = list(start), 0
    while sent(known) == "i0" and alone < 100:
        alone += 1
        known[0] = replace(known[0], reserved_tokens=known[0].reserved_tokens + TOKENS)
    assert alone == pytest.approx(20 / GATEWAYS, abs=1), "a quarter of the difference is this gateway's to fill"
