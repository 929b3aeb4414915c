"""Pages for people: the chat box at `/` and the API at `/docs`, as sent."""

import base64
import hashlib
import html
import re
from typing import Any

import pytest

from serving.gateway.api.admin.timeline_routes import timeline_router
from serving.gateway.api.openapi import BODIES, BODY_PARTS, FIELD_NOTES
from serving.gateway.api.pages.api_page import EXAMPLES, FORMS, type_text
from serving.gateway.api.pages.document import page_asset
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.fakes.kv_hints import FakeKvHints
from tests.fakes.pool_admin import two_servers
from tests.fakes.timelines import KeptTimelines
from tests.gateway.api.support import Harness, check, post, request

VENDORED = ("marked.umd.js", "purify.min.js")
DASHBOARD = "http://127.0.0.1:8265/pools"


@pytest.fixture(scope="module")
def whole(served: ServedModel) -> Harness:
    settings = ApiSettings(version="1.2.3", placeholder_tokens=True, pools_page=DASHBOARD)
    touched = FakeKvHints({("default", "request:REQUEST_ID", ""): 1})
    harness = Harness(served, settings, two_servers(), hints=touched)
    harness.app.include_router(timeline_router(KeptTimelines()))
    return harness


@pytest.fixture(scope="module")
def closed(served: ServedModel) -> Harness:
    return Harness(served, ApiSettings(api_key_hashes=(hash_api_key("one"), hash_api_key("schlüssel:1"))))


def page(harness: Harness, path: str, **headers: str) -> str:
    reply = request(harness.app, "GET", path, headers=headers)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    return own(reply.text)


def own(text: str) -> str:
    """A page without the libraries that it carries."""
    for name in VENDORED:
        text = text.replace(page_asset(name), "")
    return text


def test_vendored_libraries_are_the_ones_that_are_stated() -> None:
    stated = re.findall(r"^([0-9a-f]{64})  (.+)$", page_asset("VENDORED.txt"), re.MULTILINE)
    assert {name: digest for digest, name in stated} == {
        name: hashlib.sha256(page_asset(name).encode()).hexdigest() for name in VENDORED
    }


def test_the_first_page_names_the_model_and_leads_everywhere(whole: Harness, harness: Harness) -> None:
    text = page(whole, "/")
    assert '<h1 id="model">tiny</h1>' in text
    assert "512 tokens" in text
    assert [link for link in re.findall('href="([^"]+)"', text) if link != "data:,"] == [
        "requests", "docs", "openapi.json", "metrics", DASHBOARD,
    ]  # fmt: skip
    assert "curl http://test/v1/chat/completions" in html.unescape(text)
    assert "Placeholder text" in text
    plain = page(harness, "/")
    assert "Placeholder text" not in plain
    assert "pools" not in re.findall('href="([^"]+)"', plain)


@pytest.mark.parametrize("path", ["/", "/requests", "/sessions", "/docs"])
def test_pages_need_nothing_else_and_may_do_nothing_else(whole: Harness, path: str) -> None:
    reply = request(whole.app, "GET", path)
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    outside = set(re.findall(r"https?://[^\s\"'<&]+", own(reply.text))) - {DASHBOARD}
    assert {one for one in outside if not one.startswith("http://test")} == set()
    assert not re.findall(r"\s(?:src|style|on\w+)=", re.sub(r"<(script|style)>.*?</\1>", "", reply.text, flags=re.S))


def test_pages_are_not_there_where_keys_are_asked_for_unless_one_comes(closed: Harness) -> None:
    for path in ("/", "/docs"):
        check(request(closed.app, "GET", path), 404)
        check(request(closed.app, "GET", path, headers={"authorization": "Bearer two"}), 404)
        assert "<h1" in page(closed, path, authorization="Bearer one")
    assert "Authorization: Bearer KEY" in page(closed, "/docs", authorization="Bearer one")


def basic(key: str) -> str:
    return f"Basic {base64.b64encode(f'anybody:{key}'.encode()).decode()}"


def test_a_browser_is_told_to_ask_for_the_key_and_sends_it_as_a_password(closed: Harness) -> None:
    browser = {"accept": "text/html,application/xhtml+xml", "sec-fetch-site": "none"}
    told = request(closed.app, "GET", "/", headers=browser)
    assert (told.status_code, told.headers["www-authenticate"][:6]) == (401, "Basic ")
    assert "password" in told.text
    wrong = request(closed.app, "GET", "/", headers={**browser, "authorization": basic("2")})
    assert wrong.headers["www-authenticate"] == told.headers["www-authenticate"]
    assert "<h1" in page(closed, "/", authorization=basic("schlüssel:1"), **browser)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    own = {"authorization": basic("schlüssel:1"), "sec-fetch-site": "same-origin"}
    assert post(closed.app, "/v1/chat/completions", body, headers=own).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_adds_for_pages_of_others_does_not_count(closed: Harness, site: str) -> None:
    headers = {"authorization": basic("one"), "sec-fetch-site": site}
    check(request(closed.app, "GET", "/v1/models", headers=headers), 401)
    headers["authorization"] = "Bearer one"  # which no browser adds automatically
    assert request(closed.app, "GET", "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("given", ["Basic", "Basic ", "Basic !", "Basic b25l", f"Basic {'/w=='}", "Digest one"])
def test_what_is_no_password_is_no_key(closed: Harness, given: str) -> None:
    check(request(closed.app, "GET", "/v1/models", headers={"authorization": given}), 401)


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_name_of_the_server_is_text_whatever_it_holds(whole: Harness, path: str) -> None:
    assert "<script>alert" not in page(whole, path, host="a<script>alert(1)</script>")


def test_the_api_page_has_every_operation_field_and_schema(whole: Harness) -> None:
    text = page(whole, "/docs")
    described: dict[str, Any] = request(whole.app, "GET", "/openapi.json").json()
    for path, methods in described["paths"].items():
        for method in methods:
            assert f'<span class="method">{method.upper()}</span><code>{path}</code>' in text
    for name, schema in described["components"]["schemas"].items():
        assert name in BODIES or f'<h3 id="{name}">' in text, name
        for field in schema.get("properties", {}):
            assert f"<th><code>{field}</code>" in text, (name, field)
    targets = set(re.findall('href="#([^"]+)"', text))
    assert targets - set(re.findall('id="([^"]+)"', text)) == set(), "links that lead nowhere"


def test_an_example_names_what_is_to_be_put_in(whole: Harness) -> None:
    text = html.unescape(page(whole, "/docs"))
    assert "curl http://test/v1/requests/REQUEST_ID/timeline" in text
    assert "curl -X DELETE http://test/v1/responses/RESPONSE_ID" in text


def test_examples_are_answered(whole: Harness) -> None:
    described: dict[str, Any] = request(whole.app, "GET", "/openapi.json").json()
    bodies = {path for path, methods in described["paths"].items() for one in methods.values() if "requestBody" in one}
    assert bodies == EXAMPLES.keys() | FORMS.keys()
    uploaded = request(whole.app, "POST", "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")})
    for path, body in EXAMPLES.items():
        body = {**body, "input_file_id": uploaded.json()["id"]} if "input_file_id" in body else body
        assert post(whole.app, path.replace("{name}", "acme"), body).status_code == 200, path


def test_every_field_of_a_request_has_its_meaning(whole: Harness) -> None:
    schemas = request(whole.app, "GET", "/openapi.json").json()["components"]["schemas"]
    described = [schemas[one]["properties"] for one in (*BODIES, *BODY_PARTS)]
    fields = {name: field["description"] for properties in described for name, field in properties.items()}
    assert fields == FIELD_NOTES


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**31}, "integer ≥ 0"),
        ({"type": "number", "exclusiveMinimum": 0.0, "maximum": 1.0}, "number &gt; 0 and ≤ 1"),
        ({"type": "number", "minimum": 0.0, "maximum": 2.0}, "number 0 to 2"),
        ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
         "string or list of string"),
        ({"anyOf": [{"type": "integer"}, {"enum": [None, False]}]}, "integer or <code>false</code>"),
        ({"enum": ["left", "right"], "type": "string"},
         "<code>&quot;left&quot;</code> or <code>&quot;right&quot;</code>"),
        ({"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Tier"}},
         'object of <a href="#Tier">Tier</a>'),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({}, "anything"),
    ],
)  # fmt: skip
def test_types_in_words(schema: dict[str, Any], text: str) -> None:
    assert type_text(schema) == text
