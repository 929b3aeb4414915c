"""Blocks of agents' conversations on /v1/messages: search results, results of server tools, skipped content."""

from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings
from tests.cases.tool_vocabulary import may_begin
from tests.gateway.api.support import Harness, post
from tests.gateway.api.tools.agent_tools import BASH

FOUND = {"name": "Weather", "description": "Sky.", "input_schema": {"type": "object", "properties": {}},
         "defer_loading": True}  # fmt: skip
HI = {"role": "user", "content": "hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
PDF = {
    "type": "document",
    "title": "a.pdf",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"},
}
PLAIN = {"type": "document", "title": "Notes", "source": {"type": "text", "media_type": "text/plain", "data": "Rain."}}
SEARCHED = {"type": "search_result", "source": "https://a.example", "title": "A", "content": [
    {"type": "text", "text": "Sun."}]}  # fmt: skip


def ask(harness: Harness, *turns: Any, **fields: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 20, "messages": [HI, *turns], **fields}
    reply = post(harness.app, "/v1/messages", body)
    assert reply.status_code == 200, reply.text
    return reply


def used(*content: Any, name: str = "ToolSearch") -> list[Any]:
    return [{"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [*content]}]},
            ]  # fmt: skip


def test_a_tool_is_defined_where_it_was_found(roomy: Harness) -> None:
    """Its position in `tools` leaves the prompt's prefix unchanged, and it may be called."""
    ask(roomy, tools=[BASH])
    before = roomy.prompt()
    turns = used({"type": "tool_reference", "tool_name": "Weather"}, {"type": "tool_reference", "tool_name": "Gone"})
    reply = ask(roomy, *turns, tools=[FOUND, BASH])
    assert "x-cloudmatrix-warning" not in reply.headers
    assert roomy.prompt().startswith(before.removesuffix("<|assistant|>"))
    assert 'tool: {"type": "function", "function": {"name": "Weather", "description": "Sky."' in roomy.prompt()
    assert roomy.prompt().endswith("\nGone<|assistant|>")
    grammar = roomy.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    assert may_begin(roomy.model, grammar, '<tool_call>\n{"name": "Weather", "arguments": {}')
    ask(roomy, tools=[FOUND, BASH])
    assert roomy.prompt().index('"Weather"') < roomy.prompt().index("user: hi"), "else it would never be seen"


def test_what_a_servers_tool_did_is_a_turn(roomy: Harness) -> None:
    turn = [
        {"type": "text", "text": "Let me see."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
            {"type": "web_search_result", "title": "A", "url": "https://a.example", "encrypted_content": "EqgB"}]},
        {"type": "text", "text": "It is A.", "citations": []},
    ]  # fmt: skip
    reply = ask(roomy, {"role": "assistant", "content": turn}, {"role": "user", "content": "So?"})
    assert "x-cloudmatrix-warning" not in reply.headers
    assert ('Let me see.<tool_call>web_search: {"query": "q"}</tool_call><|eos|><|user|>tool: {"title": "A", '
            '"url": "https://a.example"}<|assistant|>It is A.') in roomy.prompt()  # fmt: skip
    ask(roomy, {"role": "assistant", "content": turn[:3]})
    assert roomy.prompt().endswith("<|assistant|>")


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        ("web_search", {"type": "web_search_tool_result_error", "error_code": "e"}, '{"error_code": "e"}'),
        ("web_fetch", {"type": "web_fetch_result", "url": "u", "content": PDF}, "[document 'a.pdf': not read"),
        ("web_fetch", {"type": "web_fetch_result", "url": "u", "content": PLAIN}, "Notes\\nRain."),
        ("code_execution", {"type": "code_execution_result", "stdout": "1", "return_code": 0}, '{"stdout": "1"'),
        ("tool_search", {"type": "tool_search_tool_search_result", "tool_references": [
            {"type": "tool_reference", "tool_name": "Weather"}]}, "Weather"),
        ("mcp", [{"type": "text", "text": "one"}], "tool: one"),
    ],
)  # fmt: skip
def test_results_of_servers_tools(roomy: Harness, kind: str, content: Any, text: str) -> None:
    turn = [{"type": "mcp_tool_use" if kind == "mcp" else "server_tool_use", "id": "a", "name": kind, "input": {}},
            {"type": f"{kind}_tool_result", "tool_use_id": "a", "content": content}]  # fmt: skip
    ask(roomy, {"role": "assistant", "content": turn}, HI)
    assert text in roomy.prompt()


def test_what_is_not_read_leaves_words_and_a_warning(roomy: Harness) -> None:
    reply = ask(roomy, *used(IMAGE, SEARCHED, PDF, PLAIN, name="Read"), {"role": "user", "content": [IMAGE, PDF]})
    assert reply.headers["x-cloudmatrix-warning"] == (
        "ignored fields: messages[2].content[0].content[0] (image), messages[2].content[0].content[2] (document), "
        "messages[3].content[0] (image), messages[3].content[1] (document)"
    )
    assert ("tool: [image: not read by this model]\nA\nhttps://a.example\nSun.\n"
            "[document 'a.pdf': not read by this model]\nNotes\nRain.") in roomy.prompt()  # fmt: skip


def test_every_route_notes_or_refuses_media(roomy: Harness) -> None:
    """`[gateway] media` holds for all of them."""
    url = {"type": "image_url", "image_url": {"url": "data:,"}}
    image, file = {"type": "input_image", "image_url": "data:,"}, {"type": "file", "file": {"filename": "a.pdf"}}
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [url, file]}]}, "messages[0].content[0]"),
        ("/tokenize", {"messages": [{"role": "user", "content": [url]}]}, "messages[0].content[0]"),
        ("/v1/responses", {"input": [{"role": "user", "content": [image]}]}, "input[0].content[0]"),
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": [IMAGE]}]},
            "messages[0].content[0]",
        ),
    ]
    noting, refusing = roomy, Harness(roomy.model, ApiSettings(media="refuse"))
    for path, fields, param in asked:
        fields |= {"model": "tiny"} | ({"max_tokens": 5} if path == "/v1/messages" else {})
        reply = post(noting.app, path, fields)
        assert reply.status_code == 200, reply.text
        kind = reply.headers["x-cloudmatrix-warning"].removeprefix(f"ignored fields: {param} (")
        assert kind.startswith(("image_url)", "input_image)", "image)")), reply.headers
        assert path == "/tokenize" or "[image: not read by this model]" in noting.prompt()
        if path == "/v1/chat/completions":
            assert "[file 'a.pdf': not read by this model]" in noting.prompt()
        refused = post(refusing.app, path, fields)
        assert (refused.status_code, f"'{param}'" in refused.text) == (400, True), refused.text
    assert not refusing.backend.jobs


@pytest.mark.parametrize(
    ("block", "param"),
    [
        ({"type": ["image"]}, "messages[0].content[0]"),
        ({"type": "search_result", "content": 5}, "messages[0].content[0].content"),
        ({"type": "document", "source": {"type": "text"}}, "messages[0].content[0].source.data"),
        ({"type": "tool_reference"}, "messages[0].content[0].tool_name"),
        ({"type": "tool_use", "id": "a", "name": "b", "input": {}}, "messages[0].content[0]"),
        ({"type": "web_search_tool_result", "content": None}, "messages[0].content[0].tool_use_id"),
    ],
)
def test_a_broken_block_is_refused_by_name(roomy: Harness, block: Any, param: str) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    reply = post(roomy.app, "/v1/messages", body)
    assert reply.status_code == 400
    assert f"'{param}'" in reply.json()["error"]["message"]
