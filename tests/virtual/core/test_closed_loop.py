"""A closed loop: a fixed number of requests at a time, each sent when another has finished, in the order of the
workload.
"""

import dataclasses

import numpy as np
import pytest

from serving.cli import command_parser, simulate
from serving.cli.simulate import open_shard
from serving.errors import ConfigError
from serving.virtual.result import Outcome, SimResult
from serving.virtual.simulation import simulate as simulated
from serving.virtual.workload.columns import RequestStream, TraceRequest
from tests.virtual.core.case import CONFIG, config

MANY = RequestStream(
    "many", [TraceRequest(1000.0 * number, 2000 + number, 40) for number in range(120)], 120, 119_000.0
)


def run(concurrency: int, stream: RequestStream = MANY, **sections: dict[str, object]) -> SimResult:
    return simulated(config(**sections), stream.closed(concurrency), check=True)


def most_at_once(result: SimResult) -> int:
    """Largest number of requests between their arrival and their end."""
    rows = result.requests
    changes = [(at_s, 1) for at_s in rows.arrival_s] + [(at_s, -1) for at_s in rows.finish_s]
    return int(np.max(np.cumsum([change for _, change in sorted(changes)])))


@pytest.mark.parametrize("concurrency", [1, 7, 119, 500])
def test_so_many_are_under_way_and_all_come_in_their_order(concurrency: int) -> None:
    result = run(concurrency)
    rows = result.requests
    assert list(rows.outcome) == [Outcome.FINISHED] * 120
    assert list(rows.prompt_tokens) == [2000 + number for number in range(120)]
    assert most_at_once(result) == min(concurrency, 120)
    assert result.workload == f"many, {concurrency} at a time"


def test_each_is_sent_when_one_before_it_has_ended() -> None:
    rows = run(1).requests
    assert list(rows.arrival_s)[1:] == pytest.approx(list(rows.finish_s)[:-1])
    rows = run(10).requests
    assert sorted(rows.arrival_s)[10:] == pytest.approx(sorted(rows.finish_s)[:110])
    few, many = run(2), run(60)
    assert many.totals.end_s < few.totals.end_s / 5
    waited = [
        np.nanmean(np.asarray(one.requests.first_token_s) - np.asarray(one.requests.arrival_s)) for one in (few, many)
    ]
    assert waited[0] < waited[1]


def test_refused_requests_make_room_for_the_next() -> None:
    """The third prompt is longer than any context."""
    usual = [*MANY.requests]
    requests = [*usual[:2], TraceRequest(0.0, 10**6, 8), *usual[2:20]]
    result = run(3, RequestStream("one too long", requests, 21, 0.0))
    assert [row for row, one in enumerate(result.requests.outcome) if one != Outcome.FINISHED] == [2]
    assert len(result.requests) == 21
    result = run(2, RequestStream("too long", [TraceRequest(0.0, 10**6, 8)] * 5, 5, 0.0))
    assert list(result.requests.outcome) == [Outcome.FAILED] * 5
    assert len(run(3, RequestStream("none", [], 0, 0.0)).requests) == 0


def test_a_lost_instance_does_not_lose_the_loop() -> None:
    gateways = dataclasses.replace(config().gateway, replicas=3)
    shared = dataclasses.replace(config(), gateway=gateways)
    result = simulated(shared, MANY.closed(12), check=True)
    assert list(result.requests.outcome) == [Outcome.FINISHED] * 120
    assert most_at_once(result) == 12


def flags(*words: str) -> dict[str, object]:
    usual = ["simulate", "--config", str(CONFIG), "--poisson", "5", "--duration", "10"]
    return vars(command_parser("simulate").parse_args([*usual, *words]))


def test_supernodes_share_the_requests_at_a_time() -> None:
    given = flags("--concurrency", "8")
    assert [open_shard(given, 0, 512, number, 3).concurrency for number in range(3)] == [3, 3, 2]
    with pytest.raises(ConfigError, match="--concurrency 2: 3 supernodes need at least 3"):
        open_shard(flags("--concurrency", "2"), 0, 512, 0, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--concurrency", "0"), "--concurrency 0: at least 1"),
        (("--concurrency", "4", "--trace", "t", "--rate", "2"), "--rate is for an open loop"),
    ],
)
def test_a_loop_that_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    load = () if "--trace" in words else ("--poisson", "5", "--duration", "10")
    arguments = command_parser("simulate").parse_args(["simulate", "--config", str(CONFIG), *load, *words])
    with pytest.raises(ConfigError, match=message):
        simulate.run(arguments)
