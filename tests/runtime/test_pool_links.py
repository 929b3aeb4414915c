"""A gateway's links: made from listings, ended by whatever ends them, never stuck."""

import asyncio

import pytest

from serving.errors import LinkError
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.link import messages as m
from serving.runtime import instance_link, pool_links
from serving.runtime.instance_link import InstanceLink
from serving.runtime.pool_links import LinkEvents, PoolLinks
from tests.runtime.harness import SECRET, Member, until
from tests.runtime.wire import STATUS, WELCOME, RawInstance, welcome

pytestmark = pytest.mark.asyncio

REPLICA = WELCOME.replica


class Gateway:
    """Links, and what they told."""

    def __init__(self) -> None:
        self.ups: list[InstanceLink] = []
        self.downs: list[str] = []
        self.frames: list[m.Frame] = []
        events = LinkEvents(
            lambda _, frame: self.frames.append(frame), self.ups.append, lambda _, why: self.downs.append(why)
        )
        self.links = PoolLinks(GatewayId("gateway"), SECRET, events)


def member(port: int, incarnation: str = "first") -> Member:
    return Member(REPLICA, "decode", NodeId("node"), "127.0.0.1", port, incarnation)


async def test_a_listed_instance_gets_one_link() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        for _ in range(3):
            gateway.links.update([member(instance.port)])
        await until(lambda: gateway.links.link(REPLICA) is not None, "the link is up")
        gateway.links.update([member(instance.port)])
        assert (instance.connections, len(gateway.ups)) == (1, 1)
        link = gateway.links.up()[0]
        assert link.welcome == WELCOME
        gateway.links.update([])
        assert gateway.links.link(REPLICA) is link, "an open link outlives its listing"
        instance.writers[0].write(m.encode(m.Frame(1, ())))
        await until(lambda: gateway.frames == [m.Frame(1, ())], "frames arrive")
        gateway.links.close()
        await until(lambda: gateway.downs == ["the gateway stops"], "the end is told once")


async def test_reports_replace_what_was_reserved() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: bool(gateway.ups), "the link is up")
        link = gateway.ups[0]
        await until(lambda: link.status == STATUS, "the first report is here")
        link.reserved_tokens = link.reserved_sequences = link.reserved_blocks = 5
        fresh = replace_status(running=3)
        instance.writers[0].write(m.encode(fresh))
        await until(lambda: link.status == fresh, "the second report is here")
        assert (link.reserved_tokens, link.reserved_sequences, link.reserved_blocks) == (0, 0, 0)
        gateway.links.close()


def replace_status(**changes: int) -> m.Status:
    fields = {name: getattr(STATUS, name) for name in STATUS.__struct_fields__}
    return m.Status(**{**fields, **changes})


async def test_a_restarted_instance_gets_a_new_link() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as old, RawInstance(welcome) as new:
        gateway.links.update([member(old.port)])
        await until(lambda: len(gateway.ups) == 1, "the old link is up")
        gateway.links.update([member(new.port, "second")])
        await until(lambda: gateway.downs == ["the replica was restarted"], "the old link is closed")
        gateway.links.update([member(new.port, "second")])
        await until(lambda: len(gateway.ups) == 2, "the new link is up")
        assert gateway.links.up()[0].incarnation == "second"
        gateway.links.close()


async def test_a_link_that_ends_right_after_the_welcome_is_made_again() -> None:
    def welcome_and_leave(writer: asyncio.StreamWriter) -> None:
        welcome(writer)
        if instance.connections == 1:
            writer.close()

    gateway = Gateway()
    async with RawInstance(welcome_and_leave) as instance:

        def second_is_up() -> bool:
            gateway.links.update([member(instance.port)])
            return instance.connections == 2 and gateway.links.link(REPLICA) is not None

        await until(second_is_up, "the second attempt holds")
        gateway.links.close()


async def test_an_instance_that_is_not_there_is_tried_again_when_listed_again() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as gone:
        port = gone.port
    gateway.links.update([member(port)])
    await until(lambda: not gateway.links._connecting, "the attempt is over")
    assert (gateway.ups, gateway.downs) == ([], [])
    async with RawInstance(welcome) as there:
        gateway.links.update([member(there.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        gateway.links.close()


async def test_a_silent_instance_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_links, "SILENCE_LIMIT_S", 0.2)
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        gateway.links.check_silence()
        assert gateway.downs == [], "it has just spoken"
        await asyncio.sleep(0.25)
        gateway.links.check_silence()
        await until(lambda: len(gateway.downs) == 1, "the link is closed")
        assert gateway.downs[0].startswith("silent for 0.")


async def test_closing_ends_attempts_under_way() -> None:
    gateway = Gateway()
    async with RawInstance(lambda writer: None) as mute:
        gateway.links.update([member(mute.port)])
        await until(lambda: mute.connections == 1, "it has connected")
        gateway.links.close()
        await until(lambda: not gateway.links._connecting, "nobody waits for the welcome any more")
        assert (gateway.ups, gateway.downs) == ([], [])


async def connect(port: int) -> InstanceLink:
    link = InstanceLink(ReplicaId("decode#1"), "first", lambda *_: None, lambda *_: pytest.fail("was never up"))
    await link.connect("127.0.0.1", port, GatewayId("gateway"), SECRET)
    return link


async def test_no_link_where_nobody_listens() -> None:
    async with RawInstance(welcome) as gone:
        port = gone.port
    with pytest.raises(LinkError, match=r"no link to decode#1 at 127\.0\.0\.1"):
        await connect(port)


async def test_no_link_to_an_instance_that_refuses() -> None:
    async with RawInstance(lambda writer: writer.close()) as instance:
        with pytest.raises(LinkError, match=r"no link to decode#1 .*(closed by the peer|reset)"):
            await connect(instance.port)


async def test_no_link_to_something_that_speaks_otherwise() -> None:
    async with RawInstance(lambda writer: writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as instance:
        with pytest.raises(LinkError, match="announced a frame of"):
            await connect(instance.port)


async def test_no_link_without_an_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_link, "CONNECT_DEADLINE_S", 0.1)
    async with RawInstance(lambda writer: None) as instance:
        with pytest.raises(LinkError, match="no answer in time"):
            await connect(instance.port)


async def test_nothing_can_be_sent_before_a_link_is_up() -> None:
    link = InstanceLink(ReplicaId("decode#1"), "first", lambda *_: None, lambda *_: None)
    assert not link.up
    assert not link.send(m.Release("ticket"))
    link.close("never was")
