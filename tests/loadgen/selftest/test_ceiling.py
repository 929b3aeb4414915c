import asyncio
import os

import pytest

from loadgen.endpoint import Backend
from loadgen.selftest.ceiling import Ceiling, Streams, measure_ceiling


@pytest.mark.parametrize(("backend", "tokens_per_s"), [(Backend.CHAT, None), (Backend.COMPLETIONS, 200.0)])
def test_a_short_measurement(backend: Backend, tokens_per_s: float | None) -> None:
    cores = os.sched_getaffinity(0)
    for seconds in (0.3, 3.0, 20.0):  # a machine may pause for longer than the shortest
        found = measure_ceiling(
            seconds=seconds, streams=8, tokens_per_answer=32, backend=backend, tokens_per_s=tokens_per_s
        )
        if found.requests:
            break
    assert os.sched_getaffinity(0) == cores
    assert found.failed == 0
    assert found.requests > 0
    assert found.tokens == found.requests * 32  # of answers that ended in the window
    assert 0 < found.cpu_s <= found.seconds * 1.5
    assert found.seconds >= 0.28  # uvloop's timers may be a little early


def test_answers_of_the_wrong_length_count_as_failed() -> None:
    asked = []

    async def ask(tokens: int) -> int:
        asked.append(tokens)
        await asyncio.sleep(0.001)
        return tokens if len(asked) % 2 else 0

    found = asyncio.run(Streams(ask, streams=4, tokens_per_answer=8).measure(0.1))
    assert asked[:4] == [1, 3, 5, 7]  # spread out
    assert set(asked[4:]) == {8}
    assert 0 < found.failed < found.requests
    assert found.tokens == 8 * (found.requests - found.failed)


def test_figures() -> None:
    found = Ceiling(streams=4, seconds=2.0, cpu_s=0.5, tokens=100_000, requests=100, reads=50_000, failed=0)
    assert found.tokens_per_s == 50_000
    assert found.tokens_per_cpu_s == 200_000
    assert found.us_per_token == pytest.approx(5.0)
    assert found.tokens_per_read == 2.0
