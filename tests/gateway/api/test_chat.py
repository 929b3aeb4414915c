from collections.abc import Callable
from typing import Any

import pytest
from httpx import Response

from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.values.sequence import FinishReason
from tests.fakes.backend import Script
from tests.gateway.api.support import EOS, Harness, chat, complete, events


def text_of(chunks: list[Any], index: int = 0) -> str:
    own = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
    return "".join(c["delta"].get("content", "") for c in own)


def test_one_answer(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon a time", cached_tokens=4)
    answer = chat(harness.app).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Once upon a time", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    prompt = len(harness.backend.jobs[0].sequences[0].prompt)
    tokens = len(harness.say("Once upon a time").tokens)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_prompt_is_the_rendered_template(harness: Harness) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]},
        {"role": "user", "content": "hi"},
    ]
    chat(harness.app, messages=messages)
    prompt = harness.backend.jobs[0].sequences[0].prompt
    expected = "<|bos|><|user|>system: Be\nkind<|user|>user: hi<|assistant|>"
    assert harness.model.tokenizer.decode(prompt, skip_special_tokens=False) == expected
    assert prompt.count(0) == 1, "the template brings the begin token; it must not be added again"


def test_final_message_is_continued(harness: Harness) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    chat(harness.app, messages=messages, continue_final_message=True, add_generation_prompt=False)
    prompt = harness.backend.jobs[0].sequences[0].prompt
    assert harness.model.tokenizer.decode(prompt).endswith("Once")


def test_stream_order_and_end(harness: Harness) -> None:
    reply = chat(harness.app, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    chunks = events(reply.text)
    assert chunks[-1] == "[DONE]"
    first, *middle, last = chunks[:-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert all(c["choices"][0]["finish_reason"] is None for c in [first, *middle])
    assert all("usage" not in c and c["choices"] for c in chunks[:-1])
    assert len({(c["id"], c["created"], c["object"]) for c in chunks[:-1]}) == 1
    assert text_of(chunks) == "Once upon a time"


def test_stream_usage(harness: Harness) -> None:
    chunks = events(chat(harness.app, stream=True, stream_options={"include_usage": True}).text)
    assert all(c["usage"] is None for c in chunks[:-2])
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == len(harness.say("Once upon a time").tokens)


@pytest.mark.parametrize("per_update", [1, 3])
@pytest.mark.parametrize("text", ["Once upon a time", "🙂🚀 half characters"])
@pytest.mark.parametrize("ask", [chat, complete])
def test_running_usage_counts_what_was_sent(
    harness: Harness, ask: Callable[..., Response], text: str, per_update: int
) -> None:
    """The other choices' tokens arrived in the same event, but are sent in later chunks."""
    harness.script_of = lambda _: harness.say(text, per_update=per_update)
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = ask(harness.app, n=3, stream=True, stream_options=options, return_token_ids=True, max_tokens=60)
    sent = 0
    for chunk in events(reply.text)[:-2]:
        sent += len(chunk["choices"][0].get("token_ids", ()))
        usage = chunk["usage"]
        assert usage["completion_tokens"] == sent, "nothing yet in the first one"
        assert usage["total_tokens"] == usage["prompt_tokens"] + sent
    assert sent == 3 * len(harness.say(text).tokens)


@pytest.mark.parametrize("per_update", [1, 2, 7])
def test_stream_and_full_say_the_same(harness: Harness, per_update: int) -> None:
    text = 'Größe 你好 🙂🚀 "quoted" \\ \n </data> end'
    harness.script_of = lambda spec: harness.say(text + spec.sequence_id[-1], per_update=per_update)
    full = chat(harness.app, n=3).json()
    chunks = events(chat(harness.app, n=3, stream=True).text)
    for index in range(3):
        assert full["choices"][index]["message"]["content"] == text + str(index)
        assert text_of(chunks, index) == text + str(index)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("per_update", [1, 3, 50])
def test_stop_string_across_token_borders(harness: Harness, stream: bool, per_update: int) -> None:
    harness.script_of = lambda _: harness.say("The dog was happy and played", end=False, per_update=per_update)
    reply = chat(harness.app, stop=["ppy a", "never"], stream=stream, stream_options=None)
    if stream:
        chunks = events(reply.text)
        text, choice = text_of(chunks), chunks[-2]["choices"][0]
    else:
        choice = reply.json()["choices"][0]
        text = choice["message"]["content"]
    assert text == "The dog was ha"
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "ppy a")
    if per_update == 1:
        assert harness.backend.generations[0].stopped == {0}


def test_stop_string_counts_tokens_up_to_its_end(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("The dog was happy and played", end=False, per_update=50)
    answer = chat(harness.app, stop="dog", include_stop_str_in_output=True).json()
    assert answer["choices"][0]["message"]["content"] == "The dog"
    assert answer["usage"]["completion_tokens"] == len(harness.say("The dog", end=False).tokens)


def test_one_stopped_choice_lets_the_others_go_on(harness: Harness) -> None:
    harness.script_of = lambda spec: harness.say("a dog lived" if spec.sequence_id.endswith("0") else "a cat lived")
    answer = chat(harness.app, n=2, stop="dog").json()
    assert [c["message"]["content"] for c in answer["choices"]] == ["a ", "a cat lived"]
    assert harness.backend.generations[0].stopped == {0}


def test_stop_strings_wait_for_min_tokens_and_may_begin_within_them(harness: Harness) -> None:
    def stopped(text: str, stop: str, within: str) -> str:
        harness.script_of = lambda _: harness.say(text, end=False)
        needed = len(harness.say(within, end=False).tokens)
        return str(chat(harness.app, stop=stop, min_tokens=needed).json()["choices"][0]["message"]["content"])

    assert stopped("dog dog dog", "dog", "") == ""
    assert stopped("dog dog dog", "dog", "dog dog") == "dog dog "
    assert stopped("a dog lived", "dog lived", "a dog") == "a "


def test_stop_token_gives_a_reason_and_no_text(harness: Harness) -> None:
    dog = harness.model.tokenizer.encode(" dog", add_special_tokens=False)[0]
    harness.script_of = lambda _: harness.say("a dog lived")
    choice = chat(harness.app, stop_token_ids=[dog]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", dog)
    choice = chat(harness.app, stop_token_ids=[dog], include_stop_str_in_output=True).json()["choices"][0]
    assert choice["message"]["content"] == "a dog"


def test_ignoring_the_end_token_runs_to_the_limit(harness: Harness) -> None:
    harness.script_of = lambda _: Script((EOS, *harness.say("more", end=False).tokens), finish=FinishReason.LENGTH)
    choice = chat(harness.app, ignore_eos=True, max_tokens=50).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("more", "length")
    choice = chat(harness.app, ignore_eos=True, skip_special_tokens=False).json()["choices"][0]
    assert choice["message"]["content"] == "<|eos|>more"


def test_incomplete_character_at_the_end_shows_as_in_a_full_decode(harness: Harness) -> None:
    emoji = harness.model.tokenizer.encode("🙂", add_special_tokens=False)
    assert len(emoji) > 1
    harness.script_of = lambda _: Script(tuple(emoji[:-1]), finish=FinishReason.LENGTH)
    expected = harness.model.tokenizer.decode(emoji[:-1])
    assert chat(harness.app).json()["choices"][0]["message"]["content"] == expected
    assert text_of(events(chat(harness.app, stream=True).text)) == expected


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs(harness: Harness, stream: bool) -> None:
    reply = chat(harness.app, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        choices = [c for chunk in events(reply.text)[:-1] for c in chunk["choices"]]
        content = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    else:
        content = reply.json()["choices"][0]["logprobs"]["content"]
    tokens = harness.say("Once upon a time").tokens
    assert [entry["token"] for entry in content] == [harness.model.tokenizer.token_text(t) for t in tokens]
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
    assert [top["logprob"] for top in content[0]["top_logprobs"]] == [-0.5, -1.5]
    assert harness.backend.jobs[0].sequences[0].sampling.logprobs == 2


def test_prompt_logprobs(harness: Harness) -> None:
    answer = chat(harness.app, prompt_logprobs=0).json()
    prompt = harness.backend.jobs[0].sequences[0].prompt
    assert answer["prompt_logprobs"][0] is None
    assert [list(entry) for entry in answer["prompt_logprobs"][1:]] == [[str(token)] for token in prompt[1:]]


def test_logprobs_without_alternatives_and_null(harness: Harness) -> None:
    content = chat(harness.app, logprobs=True, top_logprobs=None).json()["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_token_ids_come_back_when_asked(harness: Harness) -> None:
    tokens = list(harness.say("Once upon a time").tokens)
    answer = chat(harness.app, return_token_ids=True).json()
    assert answer["choices"][0]["token_ids"] == tokens
    assert answer["prompt_token_ids"] == list(harness.backend.jobs[0].sequences[0].prompt)
    chunks = events(chat(harness.app, return_token_ids=True, stream=True).text)
    assert [t for c in chunks[:-1] for choice in c["choices"] for t in choice.get("token_ids", [])] == tokens
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    content = chat(harness.app, logprobs=True, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert content[0]["token"] == f"token_id:{tokens[0]}"


def test_keepalive_comments_fill_silence(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(keepalive_s=0.01))
    harness.script_of = lambda _: harness.say("a dog", delay_s=0.05)
    body = chat(harness.app, stream=True).text
    assert ": keep-alive\n\n" in body
    assert text_of(events(body)) == "a dog"
