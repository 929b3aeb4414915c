"""`echo` returns the prompt as it was sent: special tokens as text, and token offsets into that text."""

from dataclasses import replace
from typing import Any

import pytest

from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tokenizer import Tokenizer
from tests.gateway.api.sentencepiece import SENTENCEPIECE
from tests.gateway.api.support import ASSISTANT, BOS, EOS, USER, Harness, complete, events, train_tokenizer

SENT = [
    "<|user|>hi<|eos|><|assistant|>",
    "The dog<|eos|>",
    "<|bos|><|user|>größe 你好",
    "<|eos|>",
    "plain",
]


def choice(harness: Harness, *, stream: bool = False, **fields: Any) -> tuple[str, list[str], list[int]]:
    """Text, tokens and offsets of a response."""
    reply = complete(harness.app, echo=True, stream=stream, **fields)
    assert reply.status_code == 200, reply.text
    chunks = [one["choices"][0] for one in (events(reply.text)[:-1] if stream else [reply.json()]) if one["choices"]]
    found = [one["logprobs"] for one in chunks if one["logprobs"]]
    tokens = [token for one in found for token in one["tokens"]]
    return "".join(one["text"] for one in chunks), tokens, [at for one in found for at in one["text_offset"]]


@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("special", [None, False])
def test_a_text_comes_back(harness: Harness, sent: str, stream: bool, special: bool | None) -> None:
    fields: dict[str, Any] = {"prompt": sent, "stream": stream, "add_special_tokens": special}
    options: list[dict[str, Any]] = [{}, {"logprobs": 0}, {"logprobs": 0, "max_tokens": 0}]
    for more in options:
        text, tokens, offsets = choice(harness, **fields, **more)
        assert text == sent + ("" if "max_tokens" in more else "Once upon a time")
        shown = list(zip(tokens, offsets, strict=True))
        if shown and special is None:
            assert shown[0] == ("<|bos|>", 0), "which the tokenizer has put there"
            del shown[0]
        for token, offset in shown:
            if not token.startswith("bytes:") and (offset < len(sent) or not token.startswith("<|")):
                assert text[offset:].startswith(token)


def test_ids_come_back_as_their_text(harness: Harness) -> None:
    body = harness.model.tokenizer.encode("hi", add_special_tokens=False)
    prompt = [BOS, USER, *body, EOS, ASSISTANT]
    text, _, offsets = choice(harness, prompt=prompt, logprobs=0, max_tokens=0)
    assert text == "<|bos|><|user|>hi<|eos|><|assistant|>"
    assert offsets[:3] == [0, 7, 15]


def test_what_is_cut_off_is_not_echoed(harness: Harness) -> None:
    assert choice(harness, prompt="<|user|>hi", truncate_prompt_tokens=1, max_tokens=0)[0] in ("hi", "i")
    cut: dict[str, Any] = {"truncate_prompt_tokens": 2, "truncation_side": "right"}
    assert choice(harness, prompt="<|user|>hi", **cut, max_tokens=0)[0] == "<|user|>"


def test_special_tokens_on_wish_are_all_shown(harness: Harness) -> None:
    assert choice(harness, prompt="hi", skip_special_tokens=False, max_tokens=0)[0] == "<|bos|>hi"


def test_the_answers_own_special_tokens_stay_away(harness: Harness) -> None:
    assert choice(harness, prompt="<|user|>hi", logprobs=0)[0] == "<|user|>hiOnce upon a time"


def test_what_a_tokenizer_puts_around_a_text(served: ServedModel) -> None:
    assert served.tokenizer.added_ends == ((BOS,), ())
    assert SENTENCEPIECE.added_ends == ((), ())
    raw = train_tokenizer()
    raw.post_processor = type(raw.post_processor)(
        single="<|bos|> $A <|eos|>", special_tokens=[("<|bos|>", BOS), ("<|eos|>", EOS)]
    )
    both = Tokenizer.from_raw(raw, {})
    assert both.added_ends == ((BOS,), (EOS,))
    harness = Harness(replace(served, tokenizer=both))
    for logprobs in (None, 0):
        assert choice(harness, prompt="<|eos|>hi", max_tokens=0, logprobs=logprobs)[0] == "<|eos|>hi"
