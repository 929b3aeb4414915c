"""Deadlines of responses; a cancelled task ends, whatever else happens in the same turn of the loop."""

import asyncio

import pytest

from serving.deadline import within

TURNS = range(5)
"""Turns of the loop between the answer and the cancellation: it passes through futures and tasks."""


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def its_end(task: "asyncio.Task[None]") -> None:
    """Wait for the end of a cancelled task. Raises: TimeoutError if it continues."""
    async with asyncio.timeout(30.0):
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("between", TURNS)
def test_a_cancellation_beside_an_answer_is_not_lost(between: int) -> None:
    async def scene() -> None:
        answers: asyncio.Queue[int] = asyncio.Queue()

        async def ask_for_ever() -> None:
            while True:
                await within(answers.get(), 60.0)

        asking = asyncio.create_task(ask_for_ever())
        await turns(3)
        answers.put_nowait(1)
        await turns(between)
        asking.cancel()
        await its_end(asking)
        assert asking.cancelled()

    asyncio.run(scene())


def test_an_answer_that_is_too_late_is_cancelled() -> None:
    async def scene() -> None:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await within(answer, 0.01)
        assert answer.cancelled()

    asyncio.run(scene())


@pytest.mark.parametrize("seconds", [30.0, None])
def test_an_answer_in_time_is_handed_on_and_so_is_a_failure(seconds: float | None) -> None:
    async def told() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails() -> int:
        raise OSError("away")

    assert asyncio.run(within(told(), seconds)) == 7
    with pytest.raises(OSError, match="away"):
        asyncio.run(within(fails(), seconds))
