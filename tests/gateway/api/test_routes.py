import pytest

from tests.gateway.api.support import BOS, EOS, MAX_MODEL_LEN, Harness, chat, post, request


def test_models(harness: Harness) -> None:
    listing = request(harness.app, "GET", "/v1/models").json()
    assert listing["object"] == "list"
    assert [card["id"] for card in listing["data"]] == ["tiny", "org/tiny"]
    card = request(harness.app, "GET", "/v1/models/org/tiny").json()
    assert card == listing["data"][1]
    assert (card["object"], card["created"], card["max_model_len"]) == ("model", 7, MAX_MODEL_LEN)
    assert card["root"]


def test_probes(harness: Harness) -> None:
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        reply = request(harness.app, method, path)
        assert (reply.status_code, reply.content) == (200, b"")
    assert request(harness.app, "GET", "/-/healthz").text == "success"
    assert request(harness.app, "GET", "/version").json() == {"version": "1.2.3"}
    assert request(harness.app, "GET", "/load").json() == {"server_load": 0}


def test_tokenize_and_back(harness: Harness) -> None:
    answer = post(harness.app, "/tokenize", {"prompt": "a dog 你", "return_token_strs": True}).json()
    assert answer["tokens"][0] == BOS
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == MAX_MODEL_LEN
    assert post(harness.app, "/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": "<|bos|>a dog 你"}
    plain = post(harness.app, "/tokenize", {"prompt": "a dog 你", "add_special_tokens": False}).json()
    assert plain["tokens"] == answer["tokens"][1:]
    assert plain["token_strs"] is None
    assert post(harness.app, "/detokenize", {"tokens": []}).json() == {"prompt": ""}


def test_tokenize_messages_as_chat_does(harness: Harness) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = post(harness.app, "/tokenize", {"model": "tiny", "messages": messages}).json()["tokens"]
    chat(harness.app, messages=messages)
    assert tuple(tokens) == harness.backend.jobs[0].sequences[0].prompt
    without = post(harness.app, "/tokenize", {"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert without == tokens[: len(without)]
    assert len(without) < len(tokens)
    assert EOS not in tokens


def test_openapi_describes_the_bodies(harness: Harness) -> None:
    schema = request(harness.app, "GET", "/openapi.json").json()
    models = schema["components"]["schemas"]
    for path, name in (("/v1/chat/completions", "ChatCompletionRequest"), ("/v1/completions", "CompletionRequest")):
        content = schema["paths"][path]["post"]["requestBody"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{name}"}
    assert "temperature" in models["ChatCompletionRequest"]["properties"]
    text = str(schema)
    for name in models:
        assert f"#/components/schemas/{name}" in text
    assert "#/$defs" not in text


@pytest.mark.parametrize("size", [10, 40_000])
def test_long_prompts_are_read_in_a_thread_with_the_same_result(harness: Harness, size: int) -> None:
    reply = chat(harness.app, messages=[{"role": "user", "content": "x" * size}], truncate_prompt_tokens=5)
    assert reply.status_code == 200
    assert len(harness.backend.jobs[0].sequences[0].prompt) == 5
