"""Every route through Ray's own server: its token, its refusal of browsers, our responses. No browser, no cluster."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.scaling.dashboard.guard import NONCE_HEADER
from serving.scaling.dashboard.login import LOGIN_PATH, PASS_HEADER
from serving.scaling.dashboard.once import LIFE_S, issue
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard

ROUTES = (
    ("GET", "/api/pools"),
    ("GET", "/api/pools/decisions"),
    ("GET", "/api/pools/events"),
    ("GET", "/api/pools/history"),
    ("GET", "/api/pools/decode/scale?replicas=1"),
    ("GET", "/api/pools/decode/hold"),
    ("GET", "/api/pools/decode/release"),
    ("POST", "/api/pools/decode/scale"),
    ("POST", "/api/pools/decode/hold"),
    ("POST", "/api/v1/applications/cloudmatrix/deployments/decode/scale"),
    ("DELETE", "/api/pools/decode/hold"),
)
BROWSER = {"User_Agent": "Mozilla/5.0", "Sec_Fetch_Site": "same-origin"}


def nonce(dashboard: FakeDashboard) -> dict[str, str]:
    """Nonce of the page."""
    return {**BROWSER, NONCE_HEADER: dashboard.ask("GET", "/api/pools")[1][NONCE_HEADER]}


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_without_the_token(dashboard: FakeDashboard, method: str, path: str) -> None:
    for token, expected in ((None, 401), ("wrong", 403)):
        status, headers, body = dashboard.ask(method, path, token=token)
        assert status == expected
        assert NONCE_HEADER not in headers
        assert "storyteller" not in str(body)
    assert dashboard.ask(method, path, token=None, Cookie="ray-authentication-token=wrong")[0] == 403
    assert dashboard.pool("decode")["target"] == 3


def test_the_page_is_shown_without_the_token_and_tells_nothing(dashboard: FakeDashboard) -> None:
    for path in ("/pools", "/pools/main.js", "/pools/page.css"):
        for token in (None, "wrong"):
            status, headers, body = dashboard.ask("GET", path, token=token)
            assert status == 200
            assert NONCE_HEADER not in headers
            assert TOKEN not in body
            assert "storyteller" not in body
    for path in ("/pools/", "/pools/other", "/pools/..%2fapi%2fpools", "/pools/main.js/", "/poolsx", "/api/serve"):
        assert dashboard.ask("GET", path, token=None)[0] == 401, path


def test_a_pass_is_good_for_rays_cookie_once(dashboard: FakeDashboard) -> None:
    once = issue(TOKEN, time.time())
    status, headers, _ = dashboard.ask("GET", LOGIN_PATH, token=None, **{PASS_HEADER: once}, **BROWSER)
    assert status == 200
    cookie, *rules = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(rules)
    assert headers["Cache-Control"] == "no-store"
    assert dashboard.ask("GET", "/api/pools", token=None, Cookie=cookie)[0] == 200
    for given in (once, issue("another token", time.time()), issue(TOKEN, time.time() - LIFE_S - 1), "", "\N{SNOWMAN}"):
        given = given.encode().decode("latin-1")
        status, headers, answer = dashboard.ask("GET", LOGIN_PATH, token=None, **{PASS_HEADER: given})
        assert (status, answer["error"]["kind"]) == (403, "spent")
        assert "Set-Cookie" not in headers


def test_a_pass_is_taken_from_the_page_only(dashboard: FakeDashboard) -> None:
    once = {PASS_HEADER: issue(TOKEN, time.time())}
    for sent in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://127.0.0.1:9"}, {"Host": "evil.example"}):
        status, headers, answer = dashboard.ask("GET", LOGIN_PATH, token=None, **once, **sent)
        assert (status, answer["error"]["kind"]) == (403, "foreign")
        assert "Set-Cookie" not in headers
    assert dashboard.ask("GET", LOGIN_PATH, token=None, **once)[0] == 200, "that did not use it up"


def test_no_pass_is_written_into_a_log(dashboard: FakeDashboard) -> None:
    once = issue(TOKEN, time.time())
    assert dashboard.ask("GET", LOGIN_PATH, token=None, **{PASS_HEADER: once})[0] == 200
    written = [path.read_text(errors="replace") for path in dashboard.folder.rglob("*") if path.is_file()]
    assert all(once not in text for text in written)


@pytest.mark.parametrize("path", ["/api/pools", "/api/pools/decisions", "/api/pools/decode/scale?replicas=1"])
def test_a_name_that_was_rebound_to_the_dashboard_gets_nothing(dashboard: FakeDashboard, path: str) -> None:
    """Ray passes the page's own `Host` on; a cookie, which no such name has, replaces a dashboard without the token."""
    cookie = f"ray-authentication-token={TOKEN}"
    sent = {**nonce(dashboard), "Cookie": cookie}
    port = dashboard.url.rpartition(":")[2]
    for host, expected in ((f"evil.example:{port}", 403), (f"localhost:{port}", 200)):
        status, headers, body = dashboard.ask("GET", path, token=None, Host=host, **sent)
        assert status == expected, body
        assert expected == 200 or NONCE_HEADER not in headers


def test_the_page_keeps_to_itself(dashboard: FakeDashboard) -> None:
    for path, kind in (("/pools", "text/html"), ("/pools/page.css", "text/css"), ("/pools/main.js", "text/javascript")):
        status, headers, _ = dashboard.ask("GET", path)
        assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
    for path in ("/pools/none.js", "/pools/..%2fmodule.py", "/pools/..%2f..%2f..%2fpyproject.toml", "/pools/"):
        assert dashboard.ask("GET", path)[0] == 404


def test_the_files_name_no_other_server() -> None:
    folder = Path(__file__).resolve().parents[3] / "serving" / "scaling" / "dashboard" / "page"
    for path in folder.iterdir():
        assert re.findall(r"//\w|url\(|@import", path.read_text()) == [], path.name


def test_scripts_scale_hold_and_release(dashboard: FakeDashboard) -> None:
    status, _, answer = dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 5, "hold_s": 60, "by": "cli"})
    assert status == 200
    assert (answer["before"], answer["target"], answer["fits"]) == (3, 5, 7)
    pool = dashboard.pool("decode")
    assert pool["target"] == 5
    assert pool["hold"]["by"] == "cli"
    assert 50 < pool["hold"]["left_s"] <= 60
    assert dashboard.ask("DELETE", "/api/pools/decode/hold?by=cli")[0] == 200
    assert dashboard.pool("decode")["hold"] is None
    assert dashboard.ask("POST", "/api/pools/decode/hold", {"hold_s": None})[0] == 200
    assert dashboard.pool("decode")["hold"]["by"] == "rest"
    assert dashboard.pool("decode")["target"] == 5


def test_rays_own_route_goes_the_same_way(dashboard: FakeDashboard) -> None:
    path = "/api/v1/applications/cloudmatrix/deployments/decode/scale"
    status, _, answer = dashboard.ask("POST", path, {"target_num_replicas": 20})
    assert (status, answer["kind"], answer["fits"]) == (409, "no_room", 7)
    assert "7 would" in answer["error"], "a string, as Ray's own"
    status, _, answer = dashboard.ask("POST", path, {"replicas": 2})
    assert (status, answer["kind"]) == (400, "invalid")
    assert isinstance(answer["error"], str)
    status, _, answer = dashboard.ask("POST", path.replace("decode", "nobody"), {"target_num_replicas": 2})
    assert (status, answer["kind"], isinstance(answer["error"], str)) == (404, "unknown_pool", True)
    assert dashboard.ask("POST", path, {"target_num_replicas": 2})[0] == 200
    assert dashboard.pool("decode")["target"] == 2
    assert dashboard.pool("decode")["hold"]["by"] == "rest"


def test_what_does_not_fit_is_refused_with_what_would(dashboard: FakeDashboard) -> None:
    status, _, answer = dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 20})
    assert status == 409
    assert answer["error"]["kind"] == "no_room"
    assert answer["error"]["fits"] == 7
    assert "7 would" in answer["error"]["message"]
    assert dashboard.pool("decode")["target"] == 3


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", "/api/pools/nobody/scale", {"replicas": 1}, 404, "unknown_pool"),
        ("POST", "/api/pools/nobody/hold", {}, 404, "unknown_pool"),
        ("DELETE", "/api/pools/nobody/hold", None, 404, "unknown_pool"),
        ("POST", "/api/pools/decode/scale", {}, 400, "invalid"),
        ("POST", "/api/pools/decode/scale", {"replicas": "3"}, 400, "invalid"),
        ("POST", "/api/pools/decode/scale", b"no json", 400, "invalid"),
        ("POST", "/api/pools/decode/scale", {"replicas": 1, "by": " " * 5000}, 400, "invalid"),
        ("POST", "/api/pools/decode/hold", {"hold_s": -1}, 400, "invalid"),
        ("DELETE", "/api/pools/decode/hold?by=me", None, 400, "invalid"),
        ("GET", "/api/pools/decisions?after=x", None, 400, "invalid"),
        ("GET", "/api/pools/events?limit=0", None, 400, "invalid"),
        ("GET", "/api/pools/history?after=nan", None, 400, "invalid"),
    ],
)
def test_mistakes_are_told(dashboard: FakeDashboard, method: str, path: str, body: Any, status: int, kind: str) -> None:
    found, _, answer = dashboard.ask(method, path, body)
    assert (found, answer["error"]["kind"]) == (status, kind)
    assert answer["error"]["message"]


def test_decisions_by_pool_and_after_an_id(dashboard: FakeDashboard) -> None:
    newest = dashboard.ask("GET", "/api/pools/decisions")[2]["decisions"][0]["id"]
    dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 4})
    dashboard.ask("POST", "/api/pools/prefill/scale", {"replicas": 1})
    decisions = dashboard.ask("GET", f"/api/pools/decisions?after={newest}")[2]["decisions"]
    assert [(one["pool"], one["before"], one["target"]) for one in decisions] == [("prefill", 2, 1), ("decode", 3, 4)]
    decisions = dashboard.ask("GET", f"/api/pools/decisions?after={newest}&pool=decode")[2]["decisions"]
    assert [one["pool"] for one in decisions] == ["decode"]
    assert len(dashboard.ask("GET", "/api/pools/decisions?limit=1")[2]["decisions"]) == 1


def test_events_by_pool_and_after_an_id(dashboard: FakeDashboard) -> None:
    dashboard.wish(dead=["decode"])
    (died,) = dashboard.ask("GET", "/api/pools/events")[2]["events"]
    assert (died["kind"], died["pool"]) == ("died", "decode")
    assert dashboard.pool("decode")["dead"] == 1
    dashboard.wish()
    started, replaced = dashboard.ask("GET", f"/api/pools/events?after={died['id']}&pool=decode")[2]["events"]
    assert (started["kind"], replaced["kind"]) == ("started", "replaced")
    assert dashboard.ask("GET", "/api/pools/events?pool=prefill")[2]["events"] == []


def test_history_after_a_time(dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.5)
    samples = dashboard.ask("GET", "/api/pools/history")[2]["samples"]
    assert len(samples) == 719
    assert samples[0]["running"] == {"prefill": 2, "decode": 4, "kvcache": 1}
    assert len(dashboard.ask("GET", f"/api/pools/history?after={samples[-3]['at']}")[2]["samples"]) <= 3


def test_a_browser_changes_by_get_with_the_nonce(dashboard: FakeDashboard) -> None:
    page = nonce(dashboard)
    assert dashboard.ask("GET", "/api/pools/decode/scale?replicas=4&hold_s=", **page)[0] == 200
    assert dashboard.pool("decode")["target"] == 4
    assert dashboard.pool("decode")["hold"]["by"] == "page"
    assert dashboard.ask("GET", "/api/pools/decode/release", **page)[0] == 200
    assert dashboard.pool("decode")["hold"] is None
    assert dashboard.ask("GET", "/api/pools/decode/hold?hold_s=60", **page)[0] == 200
    assert dashboard.pool("decode")["hold"]["left_s"] <= 60


@pytest.mark.parametrize("verb", ["scale?replicas=1", "hold", "release"])
def test_a_get_from_elsewhere_changes_nothing(dashboard: FakeDashboard, verb: str) -> None:
    own = nonce(dashboard)
    before = dashboard.pool("decode")
    for headers, kind in (
        ({}, "stale"),
        (BROWSER, "stale"),
        ({**BROWSER, NONCE_HEADER: "guessed"}, "stale"),
        ({**own, "Sec_Fetch_Site": "same-site"}, "foreign"),
        ({**own, "Sec_Fetch_Site": "cross-site"}, "foreign"),
        ({NONCE_HEADER: own[NONCE_HEADER], "Origin": "http://127.0.0.1:9"}, "foreign"),
        ({NONCE_HEADER: own[NONCE_HEADER], "Referer": "http://evil.example/"}, "foreign"),
    ):
        status, _, answer = dashboard.ask("GET", f"/api/pools/decode/{verb}", **headers)
        assert (status, answer["error"]["kind"]) == (403, kind), headers
    after = dashboard.pool("decode")
    assert (after["target"], after["hold"]) == (before["target"], before["hold"])


def test_the_nonce_is_not_handed_to_other_sites(dashboard: FakeDashboard) -> None:
    for site in ("same-site", "cross-site"):
        status, headers, _ = dashboard.ask("GET", "/api/pools", User_Agent="Mozilla/5.0", Sec_Fetch_Site=site)
        assert status == 403
        assert NONCE_HEADER not in headers


@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if route[0] != "GET"])
def test_ray_lets_no_browser_post(dashboard: FakeDashboard, method: str, path: str) -> None:
    body = json.dumps({"replicas": 1}).encode()
    for header in ({"User_Agent": "Mozilla/5.0"}, {"Origin": dashboard.url}, {"Sec_Fetch_Site": "same-origin"}):
        assert dashboard.ask(method, path, body, **header)[0] == 405
    assert dashboard.pool("decode")["target"] == 3


def test_silence_is_told_with_503(dashboard: FakeDashboard) -> None:
    page = nonce(dashboard)
    dashboard.wish(silent=True)
    time.sleep(0.5)  # the last poll is no longer fresh
    for status, headers, answer in (
        dashboard.ask("GET", "/api/pools"),
        dashboard.ask("GET", "/api/pools/decisions"),
        dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 2}),
        dashboard.ask("GET", "/api/pools/decode/scale?replicas=2", **page),
    ):
        assert (status, answer["error"]["kind"], headers["Retry-After"]) == (503, "unavailable", "1")
    assert dashboard.ask("GET", "/pools")[0] == 200


@pytest.fixture(scope="module")
def open_dashboard(short_folder: Path) -> Iterator[FakeDashboard]:
    """Ray without token authentication."""
    folder = short_folder / "b"
    folder.mkdir()
    dashboard = FakeDashboard(folder, token=False)
    yield dashboard
    dashboard.end()


def test_without_rays_token_the_page_only_shows(open_dashboard: FakeDashboard) -> None:
    status, headers, _ = open_dashboard.ask("GET", "/api/pools", token=None)
    assert status == 200
    assert NONCE_HEADER not in headers
    sent = {PASS_HEADER: issue("", time.time())}
    status, headers, answer = open_dashboard.ask("GET", LOGIN_PATH, token=None, **sent)
    assert (status, answer["error"]["kind"]) == (403, "spent"), "there is no token to give"
    assert "Set-Cookie" not in headers
    status, _, answer = open_dashboard.ask("GET", "/api/pools/decode/scale?replicas=1", token=None, **BROWSER)
    assert (status, answer["error"]["kind"]) == (403, "read_only")
    assert open_dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 1}, token=None)[0] == 200
