from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from serving.values.sequence import FinishReason
from tests.fakes.backend import Script
from tests.gateway.api.sentencepiece import SENTENCEPIECE
from tests.gateway.api.support import BOS, MAX_MODEL_LEN, Harness, chat, complete, events


def test_one_answer(harness: Harness) -> None:
    answer = complete(harness.app).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0,
        "text": "Once upon a time",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    assert harness.backend.jobs[0].sequences[0].sampling.max_tokens == 16
    assert harness.backend.jobs[0].sequences[0].prompt[0] == BOS


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a dog", 1), (["a dog", "a cat"], 2), ([68, 287], 1), ([[68], [68, 287], [5]], 3)],
    ids=["text", "texts", "ids", "lists of ids"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_prompt_times_n_choices(harness: Harness, prompt: Any, prompts: int, n: int) -> None:
    harness.script_of = lambda spec: harness.say(f"{len(spec.prompt)} {spec.sequence_id.rpartition('/')[2]}")
    answer = complete(harness.app, prompt=prompt, n=n).json()
    sequences = harness.backend.jobs[0].sequences
    assert len(sequences) == prompts * n
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert choice["text"] == f"{len(sequences[index].prompt)} {index}"
        assert sequences[index].prompt == sequences[index // n * n].prompt
        assert sequences[index].sequence_id == f"{answer['id']}/{index}"
    assert answer["usage"]["prompt_tokens"] == sum(len(s.prompt) for s in sequences[::n])
    if isinstance(prompt[0], list):
        assert [list(s.prompt) for s in sequences[::n]] == prompt


def test_seeds_differ_between_choices_and_repeat_between_requests(harness: Harness) -> None:
    complete(harness.app, prompt=["x", "y"], n=2, seed=-1)
    complete(harness.app, prompt=["x", "y"], n=2, seed=-1)
    complete(harness.app, n=3)
    first, second, free = ([s.sampling.seed for s in job.sequences] for job in harness.backend.jobs)
    assert first == second == [2**64 - 1, 0, 2**64 - 1, 0]
    assert len(set(free)) == 3


def test_stream(harness: Harness) -> None:
    chunks = events(complete(harness.app, prompt=["x", "y"], stream=True).text)
    for index in range(2):
        own = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in own) == "Once upon a time"
        assert [c["finish_reason"] for c in own][-1] == "stop"
    assert chunks[-1] == "[DONE]"


def test_echo(harness: Harness) -> None:
    assert complete(harness.app, echo=True).json()["choices"][0]["text"] == "The dogOnce upon a time"
    chunks = events(complete(harness.app, echo=True, stream=True).text)
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == "The dogOnce upon a time"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scoring_a_prompt_as_evaluation_harnesses_do(harness: Harness, max_tokens: int) -> None:
    answer = complete(harness.app, prompt=[[68, 287, 70]], echo=True, logprobs=1, max_tokens=max_tokens, seed=1).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None] + [-0.5] * (2 + max_tokens)
    assert logprobs["top_logprobs"][0] is None
    name = harness.model.tokenizer.token_text(287)
    assert logprobs["top_logprobs"][1] == {name: -0.5}
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == 3 + max_tokens
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert harness.backend.jobs[0].sequences[0].sampling.prompt_logprobs == 1


def test_logprob_offsets_count_what_a_stop_string_holds_back(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("The dog was happy and played")
    plain, held = (
        complete(harness.app, logprobs=0, max_tokens=100, **more).json()["choices"][0]
        for more in ({}, {"stop": ["was happy but"]})
    )
    assert held["text"] == plain["text"]
    assert held["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprob_offsets_point_into_the_text(harness: Harness, stream: bool) -> None:
    harness.script_of = lambda _: harness.say("a dog größe 你好 lived", per_update=2)
    reply = complete(harness.app, logprobs=0, echo=True, stream=stream, max_tokens=100)
    if stream:
        parts = [c["choices"][0] for c in events(reply.text)[:-1]]
        text = "".join(part["text"] for part in parts)
        logprobs = {
            key: [x for part in parts if part["logprobs"] for x in part["logprobs"][key]]
            for key in ("tokens", "text_offset")
        }
    else:
        choice = reply.json()["choices"][0]
        text, logprobs = choice["text"], choice["logprobs"]
    assert text == "The doga dog größe 你好 lived"
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith("bytes:") and not token.startswith("<|"):
            assert text[offset:].startswith(token)


def test_top_logprobs_hold_the_chosen_token_too(harness: Harness) -> None:
    logprobs = complete(harness.app, logprobs=3, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"]
    token = harness.say("Once").tokens[0]
    assert logprobs["tokens"][0] == f"token_id:{token}"
    assert logprobs["top_logprobs"][0][f"token_id:{token}"] == -0.5
    assert len(logprobs["top_logprobs"][0]) == 3


def test_prompt_logprobs_in_vllms_form(harness: Harness) -> None:
    choice = complete(harness.app, prompt=[68, 287], prompt_logprobs=2).json()["choices"][0]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second["287"] == {"logprob": -0.5, "decoded_token": " dog"}
    assert len(second) == 2


def test_truncation_keeps_the_end(harness: Harness) -> None:
    complete(harness.app, prompt=list(range(10, 20)), truncate_prompt_tokens=3)
    complete(harness.app, prompt=[9] * (MAX_MODEL_LEN + 100), truncate_prompt_tokens=-1, max_tokens=12)
    first, second = (job.sequences[0] for job in harness.backend.jobs)
    assert first.prompt == (17, 18, 19)
    assert len(second.prompt) == MAX_MODEL_LEN - 12


def test_prompt_without_special_tokens(harness: Harness) -> None:
    complete(harness.app, prompt="a dog", add_special_tokens=False)
    assert BOS not in harness.backend.jobs[0].sequences[0].prompt


def test_best_of_equal_to_n_is_allowed(harness: Harness) -> None:
    assert complete(harness.app, n=2, best_of=2).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_text_that_goes_on_keeps_the_space_before_its_first_word(
    served: ServedModel, stream: bool, logprobs: int | None
) -> None:
    """SentencePiece decoders strip a leading space, which is not at the start of the text: `the` and `cat` are `the
    cat`.
    """
    harness = Harness(replace(served, tokenizer=SENTENCEPIECE, vocab_size=SENTENCEPIECE.vocab_size))
    prompt, more = [256], [257, 0xF0, 0x9F, 0x99, 0x82, 256]
    harness.script_of = lambda _: Script(tuple(more), finish=FinishReason.LENGTH)
    for echo in (False, True):
        reply = complete(harness.app, prompt=prompt, echo=echo, logprobs=logprobs, stream=stream, max_tokens=6)
        chunks = events(reply.text)[:-1] if stream else [reply.json()]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert text == SENTENCEPIECE.decode(prompt + more, skip_special_tokens=True)[0 if echo else len("the") :]
        assert text.removeprefix("the") == " cat🙂 the"
    for size in range(1, 5):  # a prompt of characters in bytes may be cut anywhere for context
        many = [0xF0, 0x9F, 0x99, 0x82] * size + [0xC3, 0xA9] * size
        assert complete(harness.app, prompt=many, max_tokens=6).json()["choices"][0]["text"] == " cat🙂 the"
    half = complete(harness.app, prompt=[256, 0xF0, 0x9F], max_tokens=6).json()["choices"][0]["text"]
    assert half == "cat🙂 the"  # a broken prompt is no text to go on from
    whole = chat(harness.app).json()["choices"][0]["message"]["content"]
    assert whole == "cat🙂 the"  # a message of its own has no space in front
    begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the"}]
    rest = chat(harness.app, messages=begun, continue_final_message=True).json()["choices"][0]["message"]["content"]
    assert rest == " cat🙂 the"
