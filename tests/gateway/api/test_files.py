"""Files and batches over HTTP: OpenAI's own client, the forms of uploads, limits, tenants and lists."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from serving.gateway.api.batches.files import FileFacts
from serving.gateway.api.batches.input_lines import ENDPOINTS
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.batches import BatchLimits
from tests.gateway.api.batch_scene import COMPLETIONS, BatchScene, Json, jsonl, line
from tests.gateway.api.support import Harness, bearer, check, post, request

FORM = "multipart/form-data; boundary=XX"
ONE = jsonl([line("a")])
UNKNOWN = f"file-{0:024x}"


def upload(harness: Harness, content: bytes = ONE, purpose: str = "batch", **kwargs: Any) -> httpx.Response:
    files = {"file": ("in.jsonl", content)}
    return request(harness.app, "POST", "/v1/files", files=files, data={"purpose": purpose}, **kwargs)


def form(harness: Harness, body: bytes, declared: str = FORM) -> httpx.Response:
    return request(harness.app, "POST", "/v1/files", content=body, headers={"content-type": declared})


def part(name: str, content: bytes = b"x", more: str = "") -> bytes:
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def create(harness: Harness, **fields: Any) -> httpx.Response:
    usual = {"input_file_id": UNKNOWN, "endpoint": COMPLETIONS, "completion_window": "24h"}
    return post(harness.app, "/v1/batches", {**usual, **fields})


def listed(harness: Harness, path: str, **query: Any) -> list[str]:
    reply = request(harness.app, "GET", path, params=query)
    assert reply.status_code == 200, reply.text
    return [one["id"] for one in reply.json()["data"]]


def body_for(url: str) -> Json:
    """A request of each API for the same text."""
    messages = [{"role": "user", "content": "hi"}]
    match url:
        case "/v1/completions":
            return {"prompt": "hi"}
        case "/v1/responses":
            return {"input": "hi"}
        case "/v1/messages":
            return {"messages": messages, "max_tokens": 20}
        case _:
            return {"messages": messages}


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ENDPOINTS)
async def test_the_official_client_runs_a_batch(served: ServedModel, url: str) -> None:
    scene = BatchScene(served, ApiSettings(api_key_hashes=(hash_api_key("key"),), batch=BatchLimits()))
    gateway = scene.gateway()
    lines = [{"custom_id": f"c{n}", "method": "POST", "url": url, "body": body_for(url)} for n in range(3)]
    transport = httpx.ASGITransport(gateway.harness.app)
    async with openai.AsyncOpenAI(
        base_url="http://test/v1", api_key="key", http_client=httpx.AsyncClient(transport=transport)
    ) as client:
        file = await client.files.create(file=("größe.jsonl", jsonl(lines)), purpose="batch")
        assert (file.filename, file.bytes, file.status) == ("größe.jsonl", len(jsonl(lines)), "processed")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=url,
            completion_window="24h",
            metadata={"a": "b"},
        )
        async with asyncio.timeout(60):
            while batch.status != "completed":
                await asyncio.sleep(0.02)
                batch = await client.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.metadata) == (3, {"a": "b"})
        assert batch.output_file_id is not None
        content = await client.files.content(batch.output_file_id)
        assert content.text.count("Once upon a time") == 3
        assert content.text.count('"store":false') == (3 if url == "/v1/responses" else 0)
        assert [one.id async for one in client.files.list(purpose="batch_output")] == [batch.output_file_id]
        assert [one.id async for one in client.files.list(limit=1)] == [batch.output_file_id, file.id]
        assert [one.id async for one in client.batches.list(limit=1)] == [batch.id]
        assert (await client.files.retrieve(file.id)).purpose == "batch"
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(file.id)
        with pytest.raises(openai.ConflictError):
            await client.with_options(max_retries=0).batches.cancel(batch.id)
    await scene.end()


def test_what_is_uploaded_is_read_again(fresh: Harness) -> None:
    """Bytes of every kind, longer than a piece in the store, with what looks like the form's own parts."""
    content = bytes(range(256)) * 9000 + b"\r\n--XX\r\n--\r\n\r\n--X"
    reply = upload(fresh, content)
    assert "is lost with it" not in reply.text
    assert "lost with it" in reply.headers["x-cloudmatrix-warning"], "no other gateway has it"
    found = request(fresh.app, "GET", f"/v1/files/{reply.json()['id']}/content")
    assert found.content == content
    assert found.headers["content-length"] == str(len(content))
    assert found.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (part("file") + b"--XX--\r\n", 400, "purpose", "missing_required_parameter"),
        (part("purpose", b"batch") + b"--XX--", 400, "file", "missing_required_parameter"),
        (part("purpose", b"assistants") + part("file") + b"--XX--", 400, "purpose", "invalid_purpose"),
        (part("purpose", b"batch") + part("file", b"") + b"--XX--", 400, "file", "empty_file"),
        (part("file") + part("file") + b"--XX--", 400, None, "invalid_form"),
        (b"".join(part(f"f{n}") for n in range(17)) + b"--XX--", 400, None, "invalid_form"),
        (part("file")[:-2], 400, None, "invalid_form"),
        (b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--", 400, None, "invalid_form"),
        (b"--XX\r\nno headers", 400, None, "invalid_form"),
        (b"--XX junk\r\n\r\nx\r\n--XX--", 400, None, "invalid_form"),
        (part("file", more="; x=" + "y" * 5000) + b"--XX--", 400, None, "invalid_form"),
        (part("file", more="; filename*=a%00b''x") + b"--XX--", 400, None, "invalid_form"),
        (b"nothing", 400, None, "invalid_form"),
        (b"", 400, None, "invalid_form"),
    ],
)
def test_forms_that_are_refused(refusing: Harness, body: bytes, status: int, param: str | None, code: str) -> None:
    check(form(refusing, body), status, param, code)


@pytest.mark.parametrize(("path", "kind"), [("/v1/files", "multipart/form-data; boundary=XX"),
                                            ("/v1/completions", "application/json")])  # fmt: skip
def test_a_length_of_many_digits_is_too_large(refusing: Harness, path: str, kind: str) -> None:
    headers = {"content-length": "9" * 5000, "content-type": kind}
    assert request(refusing.app, "POST", path, content=b"x", headers=headers).status_code == 413


def test_a_form_as_browsers_send_it(fresh: Harness) -> None:
    body = b"preamble\r\n" + part("purpose", b"batch") + part("extra") + part("file", ONE, '; filename="a.jsonl"')
    reply = form(fresh, body + b"--XX--\r\nepilogue", 'Multipart/Form-Data; boundary="XX"')
    assert (reply.json()["bytes"], reply.json()["filename"]) == (len(ONE), "a.jsonl")
    assert "extra" in reply.headers["x-cloudmatrix-warning"]


def test_what_is_no_form(refusing: Harness) -> None:
    for declared in ("application/json", "multipart/form-data", "multipart/mixed; boundary=XX", "x"):
        check(form(refusing, part("file"), declared), 415, None, "unsupported_media_type")


def test_limits_of_files(served: ServedModel) -> None:
    settings = ApiSettings(max_file_bytes=2000, batch=BatchLimits(running=1))
    harness = Harness(served, replace(settings, files=replace(settings.files, items=4, size_bytes=4000)))
    check(upload(harness, bytes(2001)), 413, "file", "request_too_large", "2000 bytes")
    check(upload(harness, bytes(200_000)), 413, "file", "request_too_large")
    for _ in range(2):
        last = upload(harness, bytes(1900))
        assert last.status_code == 200, last.text
    check(upload(harness, bytes(300)), 429, None, "rate_limit_exceeded", "delete some")
    assert len(listed(harness, "/v1/files")) == 2, "nothing is left of a refused one"
    request(harness.app, "DELETE", f"/v1/files/{last.json()['id']}")
    small = upload(harness, ONE).json()["id"]
    assert create(harness, input_file_id=small).status_code == 200
    check(create(harness, input_file_id=small), 429, None, "rate_limit_exceeded")
    assert len(listed(harness, "/v1/batches")) == 1


def test_so_many_batches(served: ServedModel) -> None:
    settings = ApiSettings()
    harness = Harness(served, replace(settings, batches=replace(settings.batches, items=2)))
    file_id = upload(harness).json()["id"]
    names = [create(harness, input_file_id=file_id).json()["id"] for _ in range(2)]
    check(create(harness, input_file_id=file_id), 429, None, "rate_limit_exceeded", "2 batches")
    assert listed(harness, "/v1/batches", order="asc") == names


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({}, 404, "input_file_id"),
        ({"input_file_id": "#bytes"}, 404, "input_file_id"),
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, 400, "metadata.a"),
        ({"metadata": {"x" * 65: "a"}}, 400, None),
        ({"metadata": {f"k{n}": "a" for n in range(17)}}, 400, "metadata"),
    ],
)
def test_batches_that_are_refused(fresh: Harness, fields: Json, status: int, param: str | None) -> None:
    reply = create(fresh, **fields)
    if param is None:
        assert (reply.status_code, reply.json()["error"]["param"].startswith("metadata")) == (status, True)
    else:
        check(reply, status, param)
    assert listed(fresh, "/v1/batches") == []


def test_results_are_no_input(fresh: Harness) -> None:
    """Nor is any other file with another purpose."""

    async def with_output() -> str:
        shelf = fresh.batches
        await shelf.files.open("default", UNKNOWN, FileFacts("x", "batch_output", lines=True), "me")
        await shelf.files.append("default", UNKNOWN, "me", [b"{}\n"])
        await shelf.files.close("default", UNKNOWN, "me")
        return UNKNOWN

    check(create(fresh, input_file_id=asyncio.run(with_output())), 400, "input_file_id", "invalid_purpose")


def test_lists_turn_pages(fresh: Harness) -> None:
    names = [upload(fresh).json()["id"] for _ in range(4)]
    assert listed(fresh, "/v1/files", order="asc") == names
    assert listed(fresh, "/v1/files", limit=2) == names[:1:-1]
    assert listed(fresh, "/v1/files", after=names[2]) == names[1::-1]
    assert listed(fresh, "/v1/files", purpose="batch_output") == []
    for name, value in (("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "file-1"), ("purpose", "vision")):
        check(request(fresh.app, "GET", "/v1/files", params={name: value}), 400, name, "invalid_value")
    check(request(fresh.app, "GET", "/v1/batches", params={"limit": "101"}), 400, "limit")


def test_another_tenants_files_and_batches_are_not_there(served: ServedModel) -> None:
    acme = NamespaceKeys("acme", (hash_api_key("a1"), hash_api_key("a2")))
    harness = Harness(served, ApiSettings(namespaces=(acme,), api_key_hashes=(hash_api_key("plain"),)))
    file_id = upload(harness, headers=bearer("a1")).json()["id"]
    body = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    name = post(harness.app, "/v1/batches", body, headers=bearer("a2")).json()["id"]
    for method, path, param in (
        ("GET", f"/v1/files/{file_id}", "file_id"),
        ("GET", f"/v1/files/{file_id}/content", "file_id"),
        ("DELETE", f"/v1/files/{file_id}", "file_id"),
        ("GET", f"/v1/batches/{name}", "batch_id"),
        ("POST", f"/v1/batches/{name}/cancel", "batch_id"),
    ):
        check(request(harness.app, method, path, headers=bearer("plain")), 404, param)
        check(request(harness.app, method, path), 401)
    check(post(harness.app, "/v1/batches", body, headers=bearer("plain")), 404, "input_file_id", "file_not_found")
    for path in ("/v1/files", "/v1/batches"):
        assert request(harness.app, "GET", path, headers=bearer("plain")).json()["data"] == []
        assert len(request(harness.app, "GET", path, headers=bearer("a2")).json()["data"]) == 1


def test_unknown_ones(refusing: Harness) -> None:
    for name in (UNKNOWN, "file-1", "%23bytes", "a:records"):
        check(request(refusing.app, "GET", f"/v1/files/{name}"), 404, "file_id", "file_not_found")
        check(request(refusing.app, "DELETE", f"/v1/files/{name}"), 404, "file_id")
        check(request(refusing.app, "GET", f"/v1/batches/{name}"), 404, "batch_id", "batch_not_found")
        check(request(refusing.app, "POST", f"/v1/batches/{name}/cancel"), 404, "batch_id")
