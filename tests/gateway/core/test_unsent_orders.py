"""Commands that a live gateway cannot send, in the middle of other effects."""

import itertools
from collections.abc import Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.errors import InvalidRequestError, LinkError, UnavailableError
from serving.gateway.core import events as e
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.generation import LiveGeneration
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.values.news import Prefilled, Tokens
from serving.values.orders import Add, Adopt, Cancel, Order, Release
from serving.values.sequence import HandoffTicket
from tests.gateway.core.bench import IDLE, job
from tests.live.harness import small_config

PREFILL, DECODE = ReplicaId("prefill#0"), ReplicaId("decode#0")


class Wire:
    """A gateway's links, and the delivered commands, in order.

    Args:
        lost: numbers of the lost commands. too_large: handoffs do not fit into a frame.
    """

    def __init__(self, *, lost: Container[int] = (), too_large: bool = False) -> None:
        self.sent: list[tuple[ReplicaId, Order]] = []
        self._lost, self._numbers = lost, itertools.count()
        self.too_large = too_large
        config = small_config(Path("/nowhere"), engine={"max_attempts": 1})
        self.backend = LiveBackend(GatewayId("g"), "s", config, ["prefill", "decode"])
        for pool, replica in (("prefill", PREFILL), ("decode", DECODE)):
            link = SimpleNamespace(
                up=True, welcome=None, send=lambda order, to=replica: self.send(to, order), close=lambda why: None
            )
            self.backend.links._links[replica] = cast(Any, link)
            self.backend._tell(e.InstanceUp(replica, pool, NodeId("n"), 100))
            self.backend._tell(e.InstanceStatus(replica, IDLE))

    def send(self, replica: ReplicaId, order: Order) -> bool:
        """Send like a link."""
        if self.too_large and isinstance(order, Adopt):
            raise LinkError("40 MiB")
        if next(self._numbers) in self._lost:
            return False
        self.sent.append((replica, order))
        return True

    def prefilled(self, generation: LiveGeneration) -> None:
        """Both prompts are computed; the events arrive in one frame."""
        adds = [order for _, order in self.sent if isinstance(order, Add)]
        tickets = [
            HandoffTicket(f"t{place}", PREFILL, NodeId("n"), "/s", "l", len(add.spec.prompt), ())
            for place, add in enumerate(adds)
        ]
        news = [Tokens(add.spec.sequence_id, 0, (7,), cached_tokens=0) for add in adds]
        frame = tuple(Prefilled(first, ticket) for first, ticket in zip(news, tickets, strict=True))
        self.backend._tell(e.InstanceSays(PREFILL, frame))
        assert len(frame) == len(generation.job.sequences)


@pytest.mark.asyncio
async def test_a_handoff_too_large_to_be_sent_fails_its_request_after_the_other_choices_tokens() -> None:
    """The frame's other tokens were delivered to a finished request: a KeyError closed the link."""
    wire = Wire(too_large=True)
    generation = wire.backend.submit(job(2))
    wire.prefilled(generation)
    assert [(update.index, update.news.tokens) for update in await generation.next()] == [(0, (7,)), (1, (7,))]
    with pytest.raises(InvalidRequestError, match="too long to be sent"):
        await generation.next()
    released = [order.ticket_id for _, order in wire.sent if isinstance(order, Release)]
    assert sorted(released) == ["t0", "t1"], "nobody keeps blocks for it"
    assert wire.backend.counts() == {"running": 0, "queued": 0, "sequences": 0}


@pytest.mark.asyncio
async def test_a_request_that_fails_for_what_was_not_sent_leaves_nothing_at_the_instances() -> None:
    """Its other choice was cancelled before it was sent: an instance computed it for no client."""
    wire = Wire(lost={0, 2, 3})
    generation = wire.backend.submit(
        job(2)
    )  # 0 to the prefill instance, and, since it was not sent, 2 to the other one
    wire.backend._tell(e.InstanceStatus(PREFILL, IDLE))
    wire.backend._tell(e.Look())  # 3: its target before, so that this one is its only attempt
    with pytest.raises(UnavailableError):
        await generation.next()
    (add, cancel) = [order for _, order in wire.sent]
    assert isinstance(add, Add)
    assert cancel == Cancel(add.spec.sequence_id)


@pytest.mark.asyncio
async def test_a_job_knows_the_instances_that_were_given_work_of_it() -> None:
    wire = Wire()
    generation = wire.backend.submit(job(2))
    assert generation.replicas == [PREFILL], "two prompts, one instance"
    wire.prefilled(generation)
    assert generation.replicas == [PREFILL, DECODE]
    lost = Wire(lost={0})
    assert lost.backend.submit(job(1)).replicas == [DECODE], "what was not sent was not given"
