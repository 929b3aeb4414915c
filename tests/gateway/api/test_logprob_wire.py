"""Tokens in log-probabilities reproduce the text, partial characters included, and have distinct names."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from serving.gateway.api.choice import LogprobEntry
from serving.gateway.api.logprob_wire import chat_logprobs, completion_logprobs, prompt_logprobs, token_name
from serving.gateway.api.settings import ApiSettings
from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import FinishReason, TokenLogprobs
from tests.fakes.backend import Script
from tests.gateway.api.sentencepiece import SENTENCEPIECE
from tests.gateway.api.support import SPECIAL, Harness, chat, check, complete, events, train_tokenizer

WRAPPED = Tokenizer.from_raw(train_tokenizer(), {})
ORDINARY = st.integers(len(SPECIAL), WRAPPED.vocab_size - 1)


def rebuilt(names: Sequence[str]) -> str:
    """The text that a client assembles from the names of all tokens."""
    raw = b""
    for name in names:
        if name.startswith("bytes:"):
            escaped = name.removeprefix("bytes:").encode()
            raw += re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), escaped)
        else:
            raw += name.encode()
    return raw.decode(errors="replace")


def generated(harness: Harness, tokens: Sequence[int], *, stream: bool = False, **more: Any) -> dict[str, Any]:
    harness.script_of = lambda _: Script(tuple(tokens), finish=FinishReason.LENGTH, per_update=3)
    reply = complete(harness.app, max_tokens=max(1, len(tokens)), logprobs=3, stream=stream, **more)
    if not stream:
        choice: dict[str, Any] = reply.json()["choices"][0]
        return choice
    parts = [choice for event in events(reply.text)[:-1] for choice in event["choices"]]
    known = [part["logprobs"] for part in parts if part["logprobs"]]
    logprobs = {key: [value for one in known for value in one[key]] for key in known[0]}
    return {"text": "".join(part["text"] for part in parts), "logprobs": logprobs}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_the_text_can_be_rebuilt_from_the_tokens(harness: Harness, stream: bool, echo: bool) -> None:
    tokens = harness.model.tokenizer.encode("Ein 🙂 für 你好🚀!", add_special_tokens=False)
    choice = generated(harness, tokens, stream=stream, echo=echo, prompt="🚀 Größe", add_special_tokens=False)
    names, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert rebuilt(names) == choice["text"] == ("🚀 Größe" if echo else "") + "Ein 🙂 für 你好🚀!"
    assert any(name.startswith("bytes:") for name in names)
    assert offsets == [rebuilt(names[:i]).rstrip("\N{REPLACEMENT CHARACTER}").__len__() for i in range(len(names))]


@given(st.lists(ORDINARY, min_size=1, max_size=30))
def test_any_tokens_at_all(tokens: list[int]) -> None:
    names = [token_name(token, WRAPPED, as_ids=False) for token in tokens]
    assert rebuilt(names) == WRAPPED.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize("tail", [[], [68], "next character"])
def test_offsets_after_a_character_that_stays_half(harness: Harness, tail: list[int] | str) -> None:
    tokenizer = harness.model.tokenizer
    assert tokenizer.bytes_of is not None
    half = [tokenizer.bytes_of.index(bytes([byte])) for byte in b"\xf0\x9f"]
    if isinstance(tail, str):
        tail = [tokenizer.bytes_of.index(bytes([byte])) for byte in "é".encode()] + [68]
    choice = generated(harness, [68, *half, 68, *half, *tail])
    text, logprobs = choice["text"], choice["logprobs"]
    assert rebuilt(logprobs["tokens"]) == text
    assert logprobs["text_offset"][:6] == [0, 1, 1, 2, 3, 3]
    assert logprobs["text_offset"][6:] == ([4, 4, 5] if len(tail) == 3 else [4] * len(tail))


@pytest.mark.parametrize("as_ids", [False, True])
def test_every_alternative_has_a_key_of_its_own(as_ids: bool) -> None:
    raw = train_tokenizer()
    raw.add_tokens(["<same>", "bytes:"])
    wrapped = Tokenizer.from_raw(raw, {})
    assert wrapped.bytes_of is not None
    halves = [i for i, own in enumerate(wrapped.bytes_of) if len(own) == 1 and own[0] >= 0x80]
    top = tuple((token, -1.0 - i) for i, token in enumerate(halves))
    values = TokenLogprobs(halves[5], -6.0, top)
    logprobs = completion_logprobs([LogprobEntry(halves[5], 0, values)], len(top), wrapped, as_ids=as_ids)
    (alternatives,) = logprobs["top_logprobs"]
    assert list(alternatives.values()) == [logprob for _, logprob in top]
    assert alternatives[logprobs["tokens"][0]] == -6.0
    if as_ids:
        assert list(alternatives) == [f"token_id:{token}" for token in halves]
    else:
        assert rebuilt([token_name(raw.get_vocab()["bytes:"], wrapped, as_ids=False)]) == "bytes:"


def test_tokens_that_share_a_text_are_told_apart() -> None:
    raw = train_tokenizer()
    dog = next(i for i, own in enumerate(Tokenizer.from_raw(raw, {}).bytes_of or ()) if own == b" dog")
    raw.add_tokens([" dog"])  # in addition to the vocabulary's own `Ġdog`
    wrapped = Tokenizer.from_raw(raw, {})
    added = raw.get_vocab()[" dog"]
    values = TokenLogprobs(added, -2.0, ((dog, -1.0), (added, -2.0)))
    (alternatives,) = completion_logprobs([LogprobEntry(added, 0, values)], 2, wrapped, as_ids=False)["top_logprobs"]
    assert alternatives == {f"token_id:{dog}": -1.0, " dog": -2.0}


def test_chat_and_prompt_logprobs_show_bytes_too(harness: Harness) -> None:
    tokens = harness.model.tokenizer.encode("🚀 ü", add_special_tokens=False)
    harness.script_of = lambda _: Script(tuple(tokens), finish=FinishReason.LENGTH)
    content = chat(harness.app, logprobs=True, max_tokens=len(tokens)).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "🚀 ü"
    assert all("\N{REPLACEMENT CHARACTER}" not in entry["token"] for entry in content)
    told = prompt_logprobs([68, *tokens], [TokenLogprobs(token, -1.0, ()) for token in tokens], 0, WRAPPED)
    assert rebuilt([entry[str(token)]["decoded_token"] for token, entry in zip(tokens, told[1:], strict=True) if entry])


def test_vocabularies_that_are_not_byte_level() -> None:
    """Byte tokens are bytes, and a word's leading space is part of its text."""
    ids = SENTENCEPIECE.raw.get_vocab()
    tokens = [ids["▁the"], ids["▁cat"], ids["<0xF0>"], ids["<0x9F>"], ids["<0x99>"], ids["<0x82>"], ids["s"]]
    names = [token_name(token, SENTENCEPIECE, as_ids=False) for token in tokens]
    assert names == [" the", " cat", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x99", r"bytes:\x82", "s"]
    assert rebuilt(names) == " the cat🙂s"
    content = chat_logprobs([LogprobEntry(token, 0, None) for token in tokens], 0, SENTENCEPIECE, as_ids=False)
    assert bytes(byte for entry in content["content"] for byte in entry["bytes"]).decode() == " the cat🙂s"


def test_a_vocabulary_whose_decoder_knows_no_bytes() -> None:
    raw = RawTokenizer(models.WordLevel({"<0x41>": 0, "a": 1}, unk_token="a"))
    raw.decoder = decoders.Fuse()
    assert Tokenizer.from_raw(raw, {}).token_bytes(0) == b"<0x41>"


VOCABULARY = 400
TOLD = {"logprobs": True, "max_tokens": 2}


def test_all_alternatives(harness: Harness) -> None:
    told = chat(harness.app, **TOLD, top_logprobs=-1, prompt_logprobs=-1).json()
    first = told["choices"][0]["logprobs"]["content"][0]
    assert len(first["top_logprobs"]) == VOCABULARY
    assert told["prompt_logprobs"][0] is None
    sampling = harness.backend.jobs[-1].sequences[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (VOCABULARY, VOCABULARY)
    told = complete(harness.app, logprobs=-1, max_tokens=2, echo=True).json()
    assert len(told["choices"][0]["logprobs"]["top_logprobs"]) > 2


def test_alternatives_that_are_named(harness: Harness) -> None:
    told = chat(harness.app, **TOLD, logprob_token_ids=[7, 5, 7], return_tokens_as_token_ids=True).json()
    for one in told["choices"][0]["logprobs"]["content"]:
        assert [top["token"] for top in one["top_logprobs"]] == ["token_id:7", "token_id:5"]
    sampling = harness.backend.jobs[-1].sequences[0].sampling
    assert (sampling.logprobs, sampling.logprob_ids, sampling.prompt_logprobs) == (0, (7, 5), None)
    told = complete(harness.app, logprobs=0, max_tokens=2, logprob_token_ids=[7], stream=True,
                    return_tokens_as_token_ids=True)  # fmt: skip
    first = events(told.text)[0]["choices"][0]["logprobs"]
    assert "token_id:7" in first["top_logprobs"][0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1, "stream": True}, "top_logprobs"),
        ({"prompt_logprobs": -1, "stream": True}, "prompt_logprobs"),
        ({"logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprobs": True, "top_logprobs": 2, "logprob_token_ids": [5]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": [VOCABULARY]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": list(range(129))}, "logprob_token_ids"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(harness: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(harness.app, **fields), 400, param)
    assert not harness.backend.jobs


def test_an_answer_that_would_be_too_large(make_harness: Callable[[ApiSettings], Harness]) -> None:
    small = make_harness(ApiSettings(max_logprob_entries=2 * VOCABULARY + 2))
    assert chat(small.app, **TOLD, top_logprobs=-1).status_code == 200
    check(
        chat(small.app, **{**TOLD, "max_tokens": 3}, top_logprobs=-1), 400, "top_logprobs", text="max_logprob_entries"
    )
    check(complete(small.app, prompt=[5, 6, 7], prompt_logprobs=-1), 400, "prompt_logprobs", text="max_logprob_entries")


def test_a_chat_begins_with_the_message_that_it_goes_on_with(harness: Harness) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So: "}]
    fields: dict[str, Any] = {"messages": turns, "continue_final_message": True, "echo": True}
    assert chat(harness.app, **fields).json()["choices"][0]["message"]["content"] == "So: Once upon a time"
    deltas = [
        one["choices"][0]["delta"].get("content", "")
        for one in events(chat(harness.app, **fields, stream=True).text)[:-1]
    ]
    assert "".join(deltas) == "So: Once upon a time"
    plain = chat(harness.app, **{**fields, "echo": False}).json()
    assert plain["choices"][0]["message"]["content"] == "Once upon a time"
    user = chat(harness.app, messages=turns[:1], echo=True).json()
    assert user["choices"][0]["message"]["content"] == "Once upon a time"
