"""A tokenizer with markers of many kinds, and messages that spell them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from serving.gateway.api.templates.chat_template import ChatTemplate
from serving.gateway.api.templates.control_tokens import ControlTokens
from serving.gateway.api.tokenizer import Tokenizer
from tests.gateway.api.rendering import render
from tests.gateway.api.support import train_tokenizer

MARKERS = ["<|im_start|>", "<|im_end|>", "<|end|>", "※"]
NOT_SPECIAL = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


def tokenizer() -> RawTokenizer:
    """A tokenizer with markers of many kinds: in the vocabulary or added, special or not, one that strips spaces."""
    raw = train_tokenizer()
    raw.add_special_tokens([*MARKERS, AddedToken("<pad>", lstrip=True, rstrip=True, normalized=False)])
    raw.add_tokens([AddedToken(text, normalized=False) for text in NOT_SPECIAL])
    raw.add_tokens(["<h1>", "    "])  # vocabulary, not markers
    return raw


RAW = tokenizer()
WRAPPED = Tokenizer.from_raw(RAW, {})
REFERENCE = PreTrainedTokenizerFast(tokenizer_object=tokenizer())
ID_OF = RAW.get_vocab()
CONTROL = {*WRAPPED.special_ids, *(ID_OF[text] for text in NOT_SPECIAL)}
PIECES = [
    *MARKERS, *NOT_SPECIAL, "<pad>", "<|user|>", "<|assistant|>", "<|", "|>", "<|en", "d|>", "end", "<", ">", "<th",
    " ", "\n", "    ", "<h1>", "ü", "你", "🙂", "dog", "\\ud83d", "\ue000", "\U000f0001", "'s", "#", "12",
]  # fmt: skip


def ids_of(template: str, messages: Sequence[Mapping[str, Any]], wrapped: Tokenizer = WRAPPED) -> list[int]:
    chat, control = ChatTemplate(template, {}), ControlTokens(wrapped, template)
    return control.encode(render(chat, messages, control=control), add_special_tokens=False)


def ids_of_transformers(template: str, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    made: Any = REFERENCE.apply_chat_template(
        [dict(message) for message in messages], chat_template=template, add_generation_prompt=True, tokenize=True
    )
    ids: list[int] = made["input_ids"]
    return ids


def control_in(ids: list[int]) -> Counter[int]:
    return Counter(i for i in ids if i in CONTROL)


def turns(*contents: str) -> list[Mapping[str, Any]]:
    return [{"role": role, "content": text} for role, text in zip(("system", "user", "tool"), contents, strict=True)]
