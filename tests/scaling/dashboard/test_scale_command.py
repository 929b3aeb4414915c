"""`cloudmatrix scale` and `cloudmatrix decisions` against the page's API over a fake system."""

import argparse
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from loadgen.cli.build_endpoint import base_url
from loadgen.errors import ServerError
from loadgen.server_address import DEFAULT_URL
from serving.cli import main
from serving.cli.decisions import line
from serving.cli.system_options import choose_gateway
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard


def ask(dashboard: FakeDashboard, *arguments: str) -> int:
    """Run `cloudmatrix ...` against the fake system. Returns: its exit code."""
    return main([*arguments, "--dashboard", dashboard.url, "--token", TOKEN])


def test_a_pool_is_scaled_and_held(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dashboard, "scale", "decode", "4", "--hold", "10m") == 0
    assert capsys.readouterr().out == "decode: 3 → 4, held for 10 minutes\n"
    assert dashboard.pool("decode")["hold"]["by"] == "cli"
    assert dashboard.pool("decode")["hold"]["left_s"] == pytest.approx(600, abs=20)


def test_times_as_people_write_them(dashboard: FakeDashboard) -> None:
    for hold, seconds in (("90s", 90), ("45", 45), ("2h", 7200), ("1.5min", 90), ("1d", 86400)):
        assert ask(dashboard, "scale", "decode", "3", "--hold", hold) == 0
        assert dashboard.pool("decode")["hold"]["left_s"] == pytest.approx(seconds, abs=20)
    assert ask(dashboard, "scale", "decode", "3", "--hold", "0") == 0
    assert dashboard.pool("decode")["hold"] is None, "no time is no hold"


def test_a_time_that_is_none(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ask(dashboard, "scale", "decode", "3", "--hold", "soon")
    assert ended.value.code == 2
    assert "'soon' is no duration: write " in capsys.readouterr().err


def test_waiting_until_they_serve(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dashboard, "scale", "decode", "4", "--wait") == 0
    assert "decode: 4 serve after " in capsys.readouterr().out


def test_waiting_outlasts_a_board_that_is_started_again(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard.wish(silent=True)
    rest = [lambda: Event().wait(0.02)] * 1000  # the board answers in its own time
    pausing(monkeypatch, lambda: None, lambda: dashboard.wish(silent=False), *rest)
    assert ask(dashboard, "scale", "decode", "4", "--wait") == 0
    told = capsys.readouterr()
    assert "decode: 4 serve after " in told.out
    assert told.err.count("the scaling board does not answer (TimeoutError); try again; waiting for up to 60 s") == 1


def test_the_raw_answer(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dashboard, "scale", "decode", "2", "--json", "--wait") == 0
    assert json.loads(capsys.readouterr().out)["target"] == 2


@pytest.mark.parametrize(
    ("pool", "replicas", "said"),
    [
        ("decode", "50", "50 replicas of decode do not fit, "),
        ("nope", "2", "there is no pool 'nope'"),
        ("a/b", "2", "there is no pool 'a/b'"),
        ("decode", "-1", "The request is not understood"),
    ],
)
def test_refusals_are_one_line(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str], pool: str, replicas: str, said: str
) -> None:
    assert ask(dashboard, "scale", pool, replicas) == 2
    told = capsys.readouterr().err
    assert told.startswith("cloudmatrix: ")
    assert said in told
    assert told.count("\n") == 1


def test_events_stand_among_the_decisions(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.wish(dead=["decode"])
    dashboard.ask("GET", "/api/pools/events")
    dashboard.ask("POST", "/api/pools/prefill/scale", {"replicas": 3})
    assert ask(dashboard, "decisions", "--last", "2") == 0
    event, decision = capsys.readouterr().out.splitlines()
    assert event.split()[2:4] == ["decode", "died"]
    assert event.endswith("12 streams moved, 1,340 tokens resumed")
    assert "2 -> 3" in decision
    assert ask(dashboard, "decisions", "--last", "1", "--pool", "decode", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "died"


def test_decisions_oldest_first(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(dashboard, "decisions", "--last", "200") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "prefill    1 -> 2   burst    autoscaler 14,200 prompt tokens queued" in lines[0]
    assert len(lines) >= 2
    assert ask(dashboard, "decisions", "--pool", "decode", "--last", "1", "--json") == 0
    (entry,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert entry["pool"] == "decode"
    told = dashboard.ask("GET", "/api/pools/decisions?pool=decode")[2]["decisions"]
    assert entry == told[0]
    assert ask(dashboard, "decisions", "--pool", "aggregated") == 0
    assert capsys.readouterr().out == "nothing has changed so far\n"


def pausing(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Events in the pauses of a command, in order; then Ctrl-C."""
    left = iter(steps)
    monkeypatch.setattr("time.sleep", lambda _: next(left, interrupted)())


def followed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Printed changes."""
    return [told for told in capsys.readouterr().out.splitlines() if " -> " in told]


def test_following_tells_what_comes_until_ctrl_c(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pausing(monkeypatch, lambda: ask(dashboard, "scale", "decode", "5"))
    assert ask(dashboard, "decisions", "--last", "1", "--follow") == 0
    assert "3 -> 5" in followed(capsys)[-1]
    pausing(monkeypatch, lambda: None, lambda: ask(dashboard, "scale", "decode", "4"))
    assert ask(dashboard, "decisions", "--last", "0", "--follow") == 0
    (change,) = followed(capsys)
    assert "5 -> 4" in change, "only what comes from now on"

    def back() -> None:
        dashboard.wish(silent=False)
        ask(dashboard, "scale", "decode", "6")

    pausing(monkeypatch, lambda: dashboard.wish(silent=True), back)
    assert ask(dashboard, "decisions", "--follow") == 0
    assert "4 -> 6" in followed(capsys)[-1], "also of a board that was started again"


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_change_in_one_line() -> None:
    entry = {"at": 0.0, "pool": "decode", "before": 3, "target": 3, "kind": "held", "by": "page", "reason": "released"}
    assert line(entry).endswith("  decode     3        held     page       released")


def test_a_token_from_a_file(dashboard: FakeDashboard, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    arguments = ["decisions", "--dashboard", dashboard.url, "--token-file"]
    assert main([*arguments, str(tmp_path / "token")]) == 0
    assert main([*arguments, str(tmp_path / "gone")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_wrong_token_and_a_wrong_address(dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decisions", "--dashboard", dashboard.url, "--token", "0" * 64]) == 3
    assert "does not accept the token" in capsys.readouterr().err
    assert main(["decisions", "--dashboard", f"{dashboard.url}/elsewhere", "--token", TOKEN]) == 3
    assert "answered 404: is that a CloudMatrix dashboard?" in capsys.readouterr().err
    assert main(["decisions", "--dashboard", "http://127.0.0.1:9", "--token", TOKEN]) == 3
    assert "no dashboard at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_system_that_stays_silent(
    dashboard: FakeDashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.client.http_client.PATIENCE_S", 0.0)
    dashboard.wish(silent=True)
    assert ask(dashboard, "scale", "decode", "3") == 3
    assert "the scaling board does not answer" in capsys.readouterr().err


# ---- which system is meant -------------------------------------------------------------------------------------------


@pytest.fixture
def starts(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of starts, initially empty."""
    folder = short_folder / "starts"
    folder.mkdir()
    monkeypatch.setattr("serving.cluster.session.temporary_folder", lambda: folder)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(short_folder / "ray-token"))
    for name in ("RAY_AUTH_TOKEN", "RAY_DASHBOARD_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def start(folder: Path, name: str, url: str, gateway: str = "http://127.0.0.1:9") -> int:
    """Files that a start leaves in its folder. Returns: the lock that shows that it is alive."""
    own = folder / f"cloudmatrix-{name}"
    (own / "kvcache").mkdir(parents=True)
    (own / "addresses").write_text(f"{url}\n{gateway}")
    (own / "dashboard-token").write_text(TOKEN)
    mark = os.open(own / "kvcache" / "alive", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(mark, fcntl.LOCK_EX)
    return mark


def test_the_only_start_of_this_user_is_meant(
    dashboard: FakeDashboard, starts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decisions"]) == 3
    assert "no system of yours runs here" in capsys.readouterr().err
    mark = start(starts, "abc", dashboard.url)
    assert main(["decisions", "--last", "1"]) == 0
    assert main(["decisions", "--last", "1", "--dashboard", dashboard.url]) == 0, "its token is known"
    other = start(starts, "def", "http://127.0.0.1:9")
    capsys.readouterr()
    assert main(["decisions"]) == 3
    told = "choose one by --url or --dashboard: http://127.0.0.1:9 (dashboard"
    assert f"{told} {dashboard.url}), http://127.0.0.1:9 (dashboard http://127.0.0.1:9)" in capsys.readouterr().err
    assert main(["status"]) == main(["experts"]) == 3
    assert capsys.readouterr().err.count(told) == 2, "commands that ask a gateway mean no other system"
    os.close(other)
    assert main(["decisions", "--last", "1"]) == 0, "the other one does not live any more"
    os.close(mark)


def test_commands_for_a_gateway_mean_the_same_start(starts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(url: str | None) -> set[str]:
        arguments = argparse.Namespace(url=url, api_key=None, host=None, port=None)
        of_loadgen = base_url(arguments)
        choose_gateway(arguments)
        return {arguments.url, of_loadgen}

    monkeypatch.setattr("loadgen.cli.build_endpoint.temporary_folder", lambda: starts)
    mark = start(starts, "abc", "http://127.0.0.1:8265", "http://127.0.0.1:9000")
    assert chosen(None) == {"http://127.0.0.1:9000"}
    other = start(starts, "def", "http://127.0.0.1:8266", "http://127.0.0.1:9001")
    with pytest.raises(ServerError, match=r"choose one by --url: \S+:9000, \S+:9001"):
        chosen(None)
    os.close(mark)
    os.close(other)
    assert chosen("http://other:8000") == {"http://other:8000"}
    assert chosen(None) == {DEFAULT_URL}


def test_a_system_elsewhere_needs_its_token(starts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decisions", "--dashboard", "http://192.0.2.1:8265"]) == 3
    assert "give its --token or --token-file" in capsys.readouterr().err


def test_a_ray_started_by_hand_is_found_as_rays_own_commands_find_it(
    dashboard: FakeDashboard, starts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decisions", "--dashboard", dashboard.url]) == 3
    assert "give its --token or --token-file" in capsys.readouterr().err
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", dashboard.url)
    (starts.parent / "ray-token").write_text(f"{TOKEN}\n")
    assert main(["decisions", "--last", "1"]) == 0
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another" * 6)
    assert main(["decisions", "--last", "1"]) == 3
    assert "token" in capsys.readouterr().err
    assert main(["decisions", "--last", "1", "--token", TOKEN]) == 0, "what is given is meant"
