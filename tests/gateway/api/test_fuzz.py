"""Whatever a body holds, the answer is a success or a client error, never a failure of the server."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gateway.api.openapi_bodies import BODIES
from tests.gateway.api.support import Harness, events, named_events, post

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["tiny", None]),
    "prompt": st.text(max_size=10)
    | st.lists(st.integers(0, 399), max_size=4)
    | st.lists(st.text(max_size=5), max_size=3),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant", "tool"])}, optional={"content": JSON}
        ),
        max_size=3,
    ),
    "tokens": st.lists(st.integers(0, 399), max_size=5),
    "input": st.text(max_size=5)
    | st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "image"])},
            optional={
                "role": st.sampled_from(["user", "developer", "assistant", "robot"]),
                "content": JSON,
                "call_id": st.text(max_size=3),
                "name": st.text(max_size=3),
                "arguments": st.text(max_size=3),
                "output": JSON,
            },
        ),
        max_size=3,
    ),
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "reasoning.encrypted_content", "x"])),
    "tools": st.lists(st.fixed_dictionaries({"type": st.sampled_from(["function", "web_search"])}), max_size=2),
    "text": st.fixed_dictionaries({"format": JSON}),
    "max_tokens": st.integers(0, 600),
    "token_ids": st.lists(st.integers(0, 399), max_size=5),
    "sampling_params": st.fixed_dictionaries(
        {}, optional={"n": st.integers(0, 3), "logprobs": st.integers(-1, 3), "temperature": SCALARS, "stop": JSON}
    ),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "logprobs": st.booleans() | st.integers(0, 3),
    "top_logprobs": st.integers(0, 3),
    "stop": st.text(max_size=3) | st.lists(st.text(min_size=1, max_size=3), max_size=2),
    "echo": st.booleans(),
    "system": st.text(max_size=5) | st.lists(JSON, max_size=2),
    "stop_sequences": st.lists(st.text(max_size=3), max_size=2),
    "thinking": st.fixed_dictionaries({"type": st.sampled_from(["disabled", "adaptive", "enabled"])}),
    "logit_bias": st.dictionaries(st.integers(0, 450).map(str), st.floats(-100, 100), max_size=2),
}
PATHS = {
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
    "ResponsesRequest": "/v1/responses",
    "MessagesRequest": "/v1/messages",
    "CountTokensRequest": "/v1/messages/count_tokens",
    "GenerateTokensRequest": "/inference/v1/generate",
    "TokenizeRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Mostly plausible fields, some of any kind."""
    name = draw(st.sampled_from(sorted(PATHS)))
    models = BODIES[name].model_fields  # type: ignore[index]  # the keys are exactly these
    fields = sorted(models)
    inputs = sorted({"prompt", "messages", "tokens", "input", "token_ids"} & set(fields))
    must = {"max_tokens", "sampling_params"} & {field for field in fields if models[field].is_required()}
    chosen = draw(st.sets(st.sampled_from(fields), max_size=4)) - set(inputs) | {draw(st.sampled_from(inputs)), *must}
    wild = draw(st.sets(st.sampled_from(fields), max_size=1))
    return PATHS[name], {f: draw(JSON if f in wild else PLAUSIBLE.get(f, SCALARS)) for f in sorted(chosen)}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies())
def test_no_body_makes_the_server_fail(harness: Harness, case: tuple[str, dict[str, Any]]) -> None:
    path, body = case
    reply = post(harness.app, path, body)
    assert reply.status_code in (200, 400, 404), (reply.status_code, reply.text)
    if reply.status_code != 200:
        theirs = path.startswith("/v1/messages")
        assert set(reply.json()["error"]) == ({"message", "type"} if theirs else {"message", "type", "param", "code"})
    elif path == "/v1/responses" and reply.headers["content-type"].startswith("text/event-stream"):
        assert named_events(reply.text)[-1]["type"] in ("response.completed", "response.incomplete")
    elif path == "/v1/messages" and reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.text.endswith('data: {"type":"message_stop"}\n\n')
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert events(reply.text)[-1] == "[DONE]"
    else:
        assert isinstance(reply.json(), dict)
