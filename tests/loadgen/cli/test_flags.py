"""What becomes of flags on their way to the run."""

import argparse

import pytest

from loadgen.cli.bench import without_keys
from loadgen.cli.build_endpoint import base_url
from loadgen.cli.run_command import add_flags


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
