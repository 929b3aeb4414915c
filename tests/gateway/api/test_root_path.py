"""Behind a proxy that shows the server under a path, whether it takes the path off or leaves it on."""

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.gateway.api.errors import check
from tests.gateway.api.support import Harness, post, request

KEYS = (hash_api_key("one"),)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def behind(served: ServedModel) -> Harness:
    return Harness(served, ApiSettings(root_path="/llm/a", api_key_hashes=KEYS))


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
