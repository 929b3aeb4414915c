"""API keys and request ids; and a proxy that serves the endpoint under a path, stripped or not."""

import pytest

from serving.gateway.api.http.auth import OPEN_PATHS
from serving.gateway.api.http.request_ids import usable_request_id
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.gateway.api.support import Harness, bearer, chat, check, post, request

KEYS = ApiSettings(api_key_hashes=(hash_api_key("one"), hash_api_key("two")))
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def test_keys_are_needed_and_checked(served: ServedModel) -> None:
    app = Harness(served, KEYS).app
    for header in (None, "Bearer", "Bearer ", "Bearer three", "Basic one", "one", "Bearer one two", "Bearer öne"):
        headers = {} if header is None else {"authorization": header.encode("latin-1")}
        reply = post(app, "/v1/chat/completions", BODY, headers=headers)
        check(reply, 401, code="invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    for key in ("one", "two"):
        assert post(app, "/v1/chat/completions", BODY, headers={"authorization": f"bearer {key}"}).status_code == 200


def test_keys_with_letters_of_any_language(served: ServedModel) -> None:
    app = Harness(served, ApiSettings(api_key_hashes=(hash_api_key("schlüssel"),))).app
    for encoding in ("utf-8", "latin-1"):
        header = "Bearer schlüssel".encode(encoding)
        assert post(app, "/v1/chat/completions", BODY, headers={"authorization": header}).status_code == 200


def test_probes_are_open_and_everything_else_is_not(served: ServedModel) -> None:
    app = Harness(served, KEYS).app
    assert OPEN_PATHS == {"/health", "/-/healthz", "/ready", "/metrics", "/version", "/ping"}
    for path in OPEN_PATHS:
        assert request(app, "GET", path).status_code == 200
    for path in ("/v1/models", "/openapi.json", "/load", "/nothing", "/metrics/"):
        check(request(app, "GET", path), 401)


def test_without_keys_any_key_passes_and_a_request_id_comes_back_or_is_made(harness: Harness) -> None:
    app = harness.app
    assert post(app, "/v1/chat/completions", BODY, headers=bearer("x")).status_code == 200
    assert b"one" not in b"".join(KEYS.api_key_hashes), "keys are not kept"
    given = request(app, "GET", "/health", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    first, second = (request(app, "GET", "/health").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert chat(app).headers["x-request-id"]
    assert usable_request_id("a b~1") == "a b~1"
    for bad in (None, "", "x" * 129, "a\nb", "ä", "a\x7f"):
        assert usable_request_id(bad) is None


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def behind(served: ServedModel) -> Harness:
    return Harness(served, ApiSettings(root_path="/llm/a", api_key_hashes=KEYS.api_key_hashes))


@pytest.mark.parametrize("prefix", ["", "/llm/a"])
def test_paths_with_and_without_the_prefix(behind: Harness, prefix: str) -> None:
    headers = {"x-api-key": "one"}
    assert post(behind.app, f"{prefix}/v1/chat/completions", CHAT, headers=headers).status_code == 200
    check(post(behind.app, f"{prefix}/v1/chat/completions", CHAT), 401)
    assert request(behind.app, "GET", f"{prefix}/health").status_code == 200, "probes carry no keys"
    assert request(behind.app, "HEAD", f"{prefix}/").status_code == 200
    wrong = post(behind.app, f"{prefix}/v1/messages", {}, headers=headers)
    assert wrong.json()["type"] == "error", "in Anthropic's words"
    assert request(behind.app, "GET", f"{prefix}/openapi.json", headers=headers).json()["servers"] == [
        {"url": "/llm/a"}
    ]


def test_other_paths_are_not_there(behind: Harness) -> None:
    headers = {"x-api-key": "one"}
    assert request(behind.app, "HEAD", "/llm/a").status_code == 200
    for path in ("/llm/ab/v1/models", "/llm/v1/models", "/llm/a/llm/a/v1/models"):
        check(request(behind.app, "GET", path, headers=headers), 404)


def test_the_page_shows_the_path(served: ServedModel) -> None:
    page = request(Harness(served, ApiSettings(root_path="/llm")).app, "GET", "/llm/").text
    assert "http://test/llm/v1/chat/completions" in page
