"""Polling /metrics during a run, for any behaviour of the server."""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.server.scrape import Scraper, metrics_url
from tests.loadgen.server.conftest import Answer, SmallServer

pytestmark = pytest.mark.real_time

Start = Callable[..., Scraper]


@pytest.fixture
def started(server: SmallServer) -> Iterator[Start]:
    """A started scraper of the server; stopped at the end."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Scraper:
            scraper = Scraper(metrics_url(server.url), **{"interval_s": 0.02, **settings})
            stack.callback(scraper.stop)
            scraper.start()
            return scraper

        yield start


def page(number: int) -> bytes:
    return f"# TYPE vllm:n counter\nvllm:n_total {10 * number}\nvllm:num_requests_running {number}\n".encode()


def counting() -> Callable[[dict], Answer]:
    numbers = itertools.count()
    return lambda _: Answer(body=page(next(numbers)))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_first_look_at_start_and_a_last_one_at_stop(server: SmallServer, started: Start) -> None:
    server.routes["/metrics"] = counting()
    begun = time.monotonic()
    scraper = started(interval_s=1000.0)
    assert len(server.seen) == 1
    scraper.stop()
    scraper.stop()
    assert len(server.seen) == 2
    series = scraper.series(begun)
    assert series.values["vllm:num_requests_running"] == [0.0, 1.0]
    assert 0 <= series.times_s[0] <= series.times_s[1] < 20
    assert scraper.problem() == ""
    assert server.connections == 1


def test_looks_go_on_in_between(server: SmallServer, started: Start) -> None:
    server.routes["/metrics"] = counting()
    scraper = started()
    wait_until(lambda: len(server.seen) >= 5)
    scraper.stop()
    series = scraper.series(0.0)
    assert len(series.times_s) >= 5
    assert series.times_s == sorted(series.times_s)
    rates = series.values["vllm:n_per_s"]
    assert rates[0] is None
    assert all(rate is not None and rate > 0 for rate in rates[1:])


def test_the_store_is_bounded_and_keeps_the_first_look(server: SmallServer, started: Start) -> None:
    server.routes["/metrics"] = counting()
    scraper = started(interval_s=0.001, most_scrapes=8)
    wait_until(lambda: len(server.seen) >= 20)
    scraper.stop()
    running = scraper.series(0.0).values["vllm:num_requests_running"]
    assert len(running) <= 8
    assert running[0] == 0.0
    assert running[-1] is not None
    assert running[-1] >= 8


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(404), "answers 404"),
        (Answer(401), "answers 401"),
        (Answer(500, {"error": "boom"}), r"answers 500 \(boom\)"),
        (Answer(body=b"\xff\xfe garbage"), "none of the known names"),
        (Answer(body=b"vllm:num_requests_running{ many\n"), "not in Prometheus' text format"),
        (Answer(body=b"vllm:n_total 1", cut=True), "in the middle of its answer"),
    ],
)
def test_a_run_never_fails_because_scraping_does(
    server: SmallServer, started: Start, answer: Answer, says: str
) -> None:
    server.routes["/metrics"] = answer
    scraper = started()
    wait_until(lambda: len(server.seen) >= 2)
    scraper.stop()
    assert scraper.series(0.0).times_s == []
    assert scraper.problem().startswith("no figures of the server's own")
    assert re.search(says, scraper.problem())


def test_failures_in_between_leave_a_gap(server: SmallServer, started: Start) -> None:
    answers = itertools.chain([Answer(body=page(0)), Answer(500)], itertools.repeat(Answer(body=page(1))))
    server.routes["/metrics"] = lambda _: next(answers)
    scraper = started()
    wait_until(lambda: len(server.seen) >= 4)
    scraper.stop()
    assert len(scraper.series(0.0).times_s) >= 3
    assert re.match("1 look at .* failed: .*500", scraper.problem())


def test_a_server_that_hangs_holds_nobody(server: SmallServer, started: Start) -> None:
    server.routes["/metrics"] = Answer(delay_s=10.0)
    begun = time.monotonic()
    scraper = started(timeout_s=0.1)
    scraper.stop()
    assert time.monotonic() - begun < 8
    assert "no answer" in scraper.problem()
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics-scraper"]


def test_addresses_keys_and_a_stop_without_start(server: SmallServer) -> None:
    assert metrics_url("http://a:1/team/") == "http://a:1/team/metrics"
    with pytest.raises(UsageError, match="not an address"):
        Scraper("metrics")
    server.routes["/other?x=1"] = counting()
    scraper = Scraper(f"{server.url}/other?x=1")
    scraper.start()
    scraper.stop()
    assert scraper.problem() == ""

    server.routes["/metrics"] = counting()
    scraper = Scraper(metrics_url(server.url), [("Authorization", "Bearer k")])
    scraper.start()
    scraper.stop()
    assert server.seen[-1][2]["authorization"] == "Bearer k"

    scraper = Scraper("http://127.0.0.1:1/metrics")
    scraper.stop()
    assert scraper.series(0.0).times_s == []
