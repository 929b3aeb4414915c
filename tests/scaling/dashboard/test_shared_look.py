"""One shared poll for all callers."""

import asyncio

import pytest

from serving.errors import ScaleError
from serving.scaling.dashboard.answers import JsonObject
from serving.scaling.dashboard.handlers import FRESH_S, SharedPoll

pytestmark = pytest.mark.asyncio


class Asked:
    """Counts polls, and responds when released."""

    def __init__(self) -> None:
        self.now = 100.0
        self.times = 0
        self.may = asyncio.Event()
        self.fails = False
        self.poll = SharedPoll(self.ask, lambda: self.now)

    async def ask(self) -> JsonObject:
        self.times += 1
        await self.may.wait()
        if self.fails:
            raise ScaleError("no", kind="unavailable")
        return {"time": self.times}


async def test_many_at_once_are_one_question() -> None:
    asked = Asked()
    waiting = [asyncio.create_task(asked.poll.value()) for _ in range(20)]
    await asyncio.sleep(0)
    asked.may.set()
    assert await asyncio.gather(*waiting) == [{"time": 1}] * 20


async def test_an_answer_is_fresh_for_a_moment() -> None:
    asked = Asked()
    asked.may.set()
    assert await asked.poll.value() == {"time": 1}
    asked.now += FRESH_S - 0.01
    assert await asked.poll.value() == {"time": 1}
    asked.now += 0.02
    assert await asked.poll.value() == {"time": 2}


async def test_a_change_makes_it_old() -> None:
    asked = Asked()
    asked.may.set()
    await asked.poll.value()
    asked.poll.forget()
    assert await asked.poll.value() == {"time": 2}


async def test_a_failure_is_told_to_all_and_asked_again_later() -> None:
    asked = Asked()
    asked.may.set()
    asked.fails = True
    for answer in await asyncio.gather(asked.poll.value(), asked.poll.value(), return_exceptions=True):
        assert isinstance(answer, ScaleError)
    asked.fails = False
    asked.now += FRESH_S
    assert await asked.poll.value() == {"time": 2}


async def test_who_goes_away_does_not_end_it_for_the_others() -> None:
    asked = Asked()
    first, second = (asyncio.create_task(asked.poll.value()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    asked.may.set()
    assert await second == {"time": 1}
