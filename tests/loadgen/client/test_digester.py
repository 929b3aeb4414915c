import asyncio
import contextlib

import pytest

from loadgen.client.digester import BATCH_BYTES, Digester
from loadgen.client.exchange import Exchange
from loadgen.record import RequestOutcome
from tests.loadgen.client.ended import digest, exchange
from tests.loadgen.client.events import CHAT, DONE, text

pytestmark = pytest.mark.asyncio


def long_exchange(events: int = 3000, together: int = 1) -> Exchange:
    """Many events, so many of them in each part."""
    parts = [text(f" {number}") * together for number in range(events // together)]
    return exchange(*parts, text("", finish="stop"), DONE)


@pytest.mark.parametrize("together", [1, 7, 600])
async def test_the_same_as_at_once(together: int) -> None:
    found = await Digester().digest(long_exchange(together=together))
    assert found == digest(long_exchange(together=together))
    assert found.outcome is RequestOutcome.OK


async def test_others_run_between_the_slices() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    digester = Digester(slice_s=0.0)  # one batch, then everybody else
    made = long_exchange(3000)
    batches = sum(map(len, made.parts)) // BATCH_BYTES
    await digester.digest(made)
    counting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await counting
    assert turns >= batches


async def test_many_at_once_in_the_order_of_their_ends() -> None:
    digester = Digester()
    order: list[int] = []

    async def one(number: int) -> None:
        found = await digester.digest(long_exchange(10 * (5 - number)))
        assert found.outcome is RequestOutcome.OK
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert len(digester) == 0
    assert digester.backlog_bytes == 0
    assert digester.overruns == 0


async def test_a_full_backlog_is_worked_off_at_once() -> None:
    digester = Digester(max_backlog_bytes=1000)
    found = await asyncio.gather(*(digester.digest(long_exchange(100)) for _ in range(3)))
    assert [one.outcome for one in found] == [RequestOutcome.OK] * 3
    assert digester.overruns == 3
    assert digester.backlog_bytes == 0


async def test_one_that_nobody_waits_for_does_not_stop_the_others() -> None:
    digester = Digester()
    waiting = asyncio.create_task(digester.digest(long_exchange()))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await digester.digest(exchange(*CHAT), 2)).outcome is RequestOutcome.OK
    assert digester.backlog_bytes == 0


async def test_a_bug_reaches_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    digester = Digester()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("loadgen.client.digester.conclude", broken)
    with pytest.raises(ZeroDivisionError):
        await digester.digest(exchange(*CHAT))
    monkeypatch.undo()
    assert (await digester.digest(exchange(*CHAT))).outcome is RequestOutcome.OK
