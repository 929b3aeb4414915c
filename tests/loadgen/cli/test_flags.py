"""Flags on their way to the run."""

import argparse
import math
from collections.abc import Callable, Iterator

import pytest

from loadgen.cli import values
from loadgen.cli.bench import without_keys
from loadgen.cli.build_endpoint import base_url
from loadgen.cli.one_run import Schedule
from loadgen.cli.run_command import add_flags
from loadgen.plan import Conversation, LoadJob, Turn


def parsed(*words: str) -> argparse.Namespace:
    """Flags of `loadgen run`."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return parser.parse_args(words)


def test_flags_of_several_values_may_be_given_several_times() -> None:
    flags = parsed(
        *("--header", "A=1", "--header", "B=2", "C=3"),
        *("--metadata", "a=1", "--metadata", "b=2"),
        *("--slo", "ttft=1s", "--slo", "tpot=50ms"),
    )
    assert flags.header == [("A", "1"), ("B", "2"), ("C", "3")]
    assert flags.metadata == [("a", "1"), ("b", "2")]
    assert flags.slo == ["ttft=1s", "tpot=50ms"]
    assert parsed().header == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["run", "--api-key", "secret"], ["run", "--api-key", "..."]),
        (["--api-key=secret", "--label", "a"], ["--api-key=...", "--label", "a"]),
        (["--header", "A=secret", "B=secret", "-m", "x"], ["--header", "A=...", "B=...", "-m", "x"]),
        (["--header=A=secret", "B=secret"], ["--header=A=...", "B=..."]),
    ],
)
def test_a_command_is_shown_without_keys(words: list[str], shown: list[str]) -> None:
    assert without_keys(words) == shown


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_the_host_may_be_an_ipv6_address(host: str) -> None:
    assert base_url(parsed("--host", host, "--port", "81")) == "http://[::1]:81"


def test_values_as_people_type_them() -> None:
    assert values.share("10%") == pytest.approx(0.1)
    assert values.share("0.25") == 0.25
    assert values.rate("inf") == math.inf
    assert values.rate_steps("2:30s,8:1m") == [(2.0, 30.0), (8.0, 60.0)]
    assert values.numbers("4,1,2,2") == [1.0, 2.0, 4.0]
    assert values.percentiles("99.9,50") == [50.0, 99.9]
    assert values.burstiness("inf") == math.inf
    assert values.whole("0") == 0

    assert values.key_value("a = b=c") == ("a", "b=c")
    assert values.json_object('{"top_k": 20}') == {"top_k": 20}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (values.rate, "0"), (values.rate, "nan"), (values.positive_float, "inf"), (values.burstiness, "0"),
        (values.share, "101%"), (values.share, "x"), (values.count, "0"), (values.count, "1.5"),
        (values.whole, "-1"), (values.numbers, ","), (values.percentiles, "101"),
        *((values.percentiles, text) for text in ("", "x", "0,50,x", "99,x", "5,10,x,20")),
        (values.rate_steps, "2"), (values.rate_steps, "2:0"), (values.key_value, "novalue"),
        (values.key_value, "=x"), (values.json_object, "[1]"), (values.json_object, "{"),
    ],
)  # fmt: skip
def test_mistakes_are_said(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


def jobs(turns: list[int], *, warmups: int = 0, every_s: float | None = None) -> Iterator[LoadJob]:
    """Jobs with this many turns each."""
    for index, count in enumerate(turns):
        conversation = Conversation(turns=[Turn(prompt="p", output_tokens=1)] * count)
        due_s = None if every_s is None else index * every_s
        yield LoadJob(index=index, conversation=conversation, due_s=due_s, warmup=index < warmups)


@pytest.mark.parametrize(
    ("turns", "warmups", "count", "seen"),
    [
        ([1] * 4, 0, 4, [4, 4, 4, 4, 4]),
        ([1] * 4, 0, 5, [5, 5, 5, 5, 4]),  # the data set ends before
        ([1] * 6, 2, 6, [6] * 7),  # of four, after two warm-ups
        ([3] * 4, 0, 4, [4, 12, 12, 12, 12]),
        ([1, 3, 2], 0, 3, [3, 3, 6, 6]),
        ([2, 2], 0, None, [None, None, 4]),
        ([], 0, 3, [0]),
    ],
)
def test_what_is_planned_gets_exact_as_jobs_are_drawn(
    turns: list[int], warmups: int, count: int | None, seen: list[int | None]
) -> None:
    schedule = Schedule(jobs(turns, warmups=warmups), count)
    told = [schedule.requests]
    for _ in schedule:
        told.append(schedule.requests)
    told[-1 if turns else 0] = schedule.requests  # the end was requested, too
    assert told == seen
    assert schedule.missing == (0 if count is None else count - len(turns))
    assert schedule.measured == len(turns) - warmups


def test_the_rest_of_a_schedule() -> None:
    schedule = Schedule(jobs([1] * 9), 12)
    next(iter(schedule))
    assert (schedule.missing, schedule.requests) == (0, 12)
    schedule = Schedule(jobs([1] * 5, warmups=2, every_s=0.5), 5)
    assert schedule.offered_per_s is None
    assert len([*schedule]) == 5
    assert schedule.offered_per_s == 2.0
