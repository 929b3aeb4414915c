"""POST /v1/responses/input_tokens counts the tokens of the same request."""

from typing import Any

import openai
import pytest

from tests.gateway.api.support import MAX_MODEL_LEN, Harness, check, post, request

PATH = "/v1/responses"
ITEMS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "A"}]


def test_it_counts_what_a_request_takes(harness: Harness) -> None:
    kept = post(harness.app, PATH, {"input": "hi"}).json()["id"]
    for fields in (
        {"input": "hi"},
        {"input": ITEMS, "instructions": "Be brief."},
        {"input": "more", "previous_response_id": kept},
        {"input": "a dog " * MAX_MODEL_LEN, "truncation": "auto"},
    ):
        jobs = len(harness.backend.jobs)
        counted = post(harness.app, f"{PATH}/input_tokens", fields)
        used = post(harness.app, PATH, fields).json()["usage"]["input_tokens"]
        assert counted.json() == {"object": "response.input_tokens", "input_tokens": used}
        assert len(harness.backend.jobs) == jobs + 1, "to count costs no job"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": "hi", "tools": [{}]}, "tools[0]"),
        ({"input": "hi", "max_tokens": 5}, "max_tokens"),
        ({"input": "a dog " * 40_000}, "input"),
    ],
)
def test_what_cannot_be_counted_names_its_field(refusing: Harness, fields: dict[str, Any], param: str) -> None:
    check(post(refusing.app, f"{PATH}/input_tokens", fields), 400, param)


def test_openais_client_counts(shared: tuple[Harness, str]) -> None:
    _, url = shared
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    assert client.responses.input_tokens.count(model="tiny", input="hi").input_tokens > 3


def test_routes_are_no_responses(harness: Harness) -> None:
    for path in ("compact", "input_tokens"):
        check(request(harness.app, "GET", f"{PATH}/{path}"), 404, "response_id")
