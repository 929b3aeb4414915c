"""`cloudmatrix explain` against a gateway that is only an HTTP server."""

import json
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from serving.cli.command_line import main
from serving.cli.explain_page import explain_page
from serving.gateway.api.pages.requests_page import GROUPS
from serving.gateway.core import timeline
from serving.gateway.core.timeline import ChoiceLine, RequestTimes, TimePart
from serving.values.expert_map import SessionTimes
from tests.cli.gateway import answering

PARTS = (
    TimePart("waiting for its turn", 0.0, 0.5),
    TimePart("prefill", 0.5, 1.0, "prefill#a", "n0", tokens=64, predicted_s=0.01),
    TimePart("handoff", 1.5, 0.25, "decode#b", "n1", nbytes=1 << 20, source="n0"),
    TimePart(
        "decode steps", 1.75, 0.25, "decode#b", "n1", tokens=9, frames=9, sessions=SessionTimes(0.01, 0.03, 0.02, 54)
    ),
)
TIMES = RequestTimes(
    "chatcmpl-1 <b>", "default", 1e9, 2.0, "stop", 64, (ChoiceLine(0, PARTS, 10, 0, 1.5),), 10, 0,
    "prefill on n0 took 1.00 s, 50 % of its 2.00 s", names=("job-1", "chatcmpl-1"),
)  # fmt: skip


ASKED: list[str] = []


def answer(asked: BaseHTTPRequestHandler) -> tuple[int, object]:
    ASKED.append(asked.path)
    if asked.path == "/v1/requests/job-1/timeline":
        return 200, msgspec.to_builtins(TIMES)
    if asked.path.startswith("/v1/requests?"):
        old, now = 1e9, time.time()
        slowest = [("old", old), ("job-1", now), ("forgotten", now)] if "slowest" in asked.path else []
        slowest = slowest[1:] if asked.path.endswith("limit=3") else slowest
        return 200, {"object": "list", "data": [{"names": [name], "arrived": at} for name, at in slowest]}
    return 404, {"error": {"message": "no timeline of a request"}}


@pytest.fixture
def url() -> Iterator[str]:
    with answering(answer) as address:
        yield address


def test_one_by_its_id(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "job-1", "--url", url]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for wanted in (
        "chatcmpl-1 <b>",
        "prefill on n0 took 1.00 s",
        "n0 → n1",
        "1.00 MiB at 4.00 MiB/s",
        "their sum is 2.00 s",
        "sessions: A2E 10.0 ms, experts 30.0 ms",
    ):
        assert wanted in said, said


def test_the_slowest_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--slowest", "3", "--json", "--url", url]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["request_id"] == TIMES.request_id
    assert "/v1/requests?which=slowest&limit=3" in ASKED


def test_only_the_requests_since_a_time(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--slowest", "1", "--since", "15min", "--json", "--url", url]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["request_id"] == TIMES.request_id
    assert main(["explain", "job-1", "--since", "15min", "--url", url]) == 2
    assert "--since does not go with the id" in capsys.readouterr().err


def test_nothing_failed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--failed", "--url", url]) == 0
    assert "there are none" in capsys.readouterr().out


def test_an_unknown_id_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "what", "--url", url]) == 2
    error = capsys.readouterr().err
    assert "no timeline" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("words", [["--slowest", "0"], ["--slowest", "x"], [], ["a", "--failed"]])
def test_mistakes_are_told(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", *words])


def test_a_page(url: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["explain", "--slowest", "--html", str(page), "--url", url]) == 0
    text = page.read_text()
    assert "chatcmpl-1 &lt;b&gt;" in text
    assert re.search(
        r"<h1>Where the time of requests went</h1>.*:\d\d, 2\.00 s, 64 prompt tokens, 10 output", text, re.DOTALL
    )
    assert "<b>" not in text.partition("<body")[2].partition("chatcmpl-1")[2][:10]
    assert explain_page([])


def test_every_kind_of_part_has_a_colour_and_a_meaning() -> None:
    assert sorted(kind for _, _, _, kinds in GROUPS for kind in kinds) == sorted(timeline.MEANINGS)
