"""Requests of a browser that may change state."""

import socket

import pytest
from multidict import CIMultiDict

from serving.scaling.dashboard.guard import NONCE_HEADER, Guard, foreign

HOST = "127.0.0.1:8265"


def headers(**more: str) -> CIMultiDict[str]:
    return CIMultiDict({"Host": HOST, **{name.replace("_", "-"): value for name, value in more.items()}})


def kind_of(guard: Guard, sent: CIMultiDict[str]) -> str | None:
    objection = guard.objection(sent)
    return objection and objection[0]


def test_the_page_itself_may() -> None:
    guard = Guard(controls=True)
    own = {NONCE_HEADER: guard.nonce}
    assert kind_of(guard, headers(**own)) is None
    assert kind_of(guard, headers(**own, Sec_Fetch_Site="same-origin", Referer=f"http://{HOST}/pools")) is None
    assert kind_of(guard, headers(**own, Origin=f"http://{HOST}", Referer=f"http://{HOST}/pools")) is None


def test_a_wrong_nonce_is_a_stale_page() -> None:
    guard = Guard(controls=True)
    for nonce in ("", Guard(controls=True).nonce, guard.nonce[:-1], "\N{SNOWMAN}", "\udcff"):
        assert kind_of(guard, headers(**{NONCE_HEADER: nonce})) == "stale"
    assert kind_of(guard, headers()) == "stale"


def test_another_origin_may_not_even_with_the_nonce() -> None:
    guard = Guard(controls=True)
    own = {NONCE_HEADER: guard.nonce}
    for site in ("same-site", "cross-site", "anything"):
        assert kind_of(guard, headers(**own, Sec_Fetch_Site=site)) == "foreign"
    assert kind_of(guard, headers(**own, Origin="http://127.0.0.1:9000")) == "foreign"
    assert kind_of(guard, headers(**own, Origin="null")) == "foreign"
    assert kind_of(guard, headers(**own, Origin="http://[")) == "foreign"
    assert kind_of(guard, headers(**own, Referer="http://evil.example/pools")) == "foreign"


def test_the_browsers_own_word_counts_before_addresses_that_a_proxy_rewrote() -> None:
    assert not foreign(headers(Sec_Fetch_Site="same-origin", Referer="https://proxy.example/ray/pools"))
    assert foreign(headers(Referer="https://proxy.example/ray/pools"))
    assert not foreign(headers(Sec_Fetch_Site="none"))
    assert not foreign(headers()), "scripts send none of this"


def test_without_the_token_nobody_may() -> None:
    guard = Guard(controls=False)
    assert kind_of(guard, headers(**{NONCE_HEADER: guard.nonce})) == "read_only"


@pytest.mark.parametrize("sent", [{}, {"host": HOST.upper()}])
def test_names_of_hosts_have_no_case(sent: dict[str, str]) -> None:
    assert not foreign(CIMultiDict({"Host": HOST, "Origin": f"HTTP://{HOST}"} | sent))


REBOUND = {"Host": "evil.example:8265", "Origin": "http://evil.example:8265", "Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize("controls", [True, False])
def test_a_page_whose_name_was_rebound_to_this_server_may_not_even_look(controls: bool) -> None:
    guard = Guard(controls=controls)
    assert guard.stranger(CIMultiDict(REBOUND)) is not None
    for host in (HOST, "localhost:8265", "[::1]:8265", "10.1.2.3:8265", f"{socket.gethostname()}:8265"):
        assert guard.stranger(CIMultiDict({"Host": host, "Sec-Fetch-Site": "same-origin"})) is None
    assert kind_of(Guard(controls=True), CIMultiDict({**REBOUND, NONCE_HEADER: guard.nonce})) == "foreign"


def test_a_script_with_the_token_may_call_the_dashboard_by_any_name() -> None:
    sent = CIMultiDict({"Host": "dashboard.example", "Authorization": "Bearer token"})
    assert Guard(controls=True).stranger(sent) is None
    assert Guard(controls=False).stranger(sent) is not None, "nobody has checked this token"
