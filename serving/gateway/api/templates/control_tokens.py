"""Only the chat template can produce control tokens: their spellings in a message are encoded as ordinary text.

A rendered prompt is one text, in which `<|end|>` written by the template and `<|end|>` written by a user look the same.
So the user's strings are marked before rendering: where one spells a control token, or could complete one together with
adjacent text, a character that no JSON text can contain is inserted and breaks the spelling. Control tokens still
intact after rendering are the template's own. A prompt without marks is encoded as usual. A prompt with marks is
encoded by a second tokenizer over the same model, in which the control tokens have secret names: the template's own are
renamed, the marks removed, and the rest is ordinary text with all its merges.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from serving.gateway.api.templates.template_process import MARK
from serving.gateway.api.templates.template_process import SOLE_MARK as _SOLE
from serving.gateway.api.tokenizer import Tokenizer

_LONGEST_EDGE = 256
"""Characters. Longer control tokens are guarded where they are spelled whole, not where edges could complete them."""
_MARKER = re.compile(r"<[|｜].*[|｜]>|</?(think|tool)\w*>|\[/?[A-Z_]+\]", re.DOTALL)
_SPELLED_OUT = re.compile(r"\w+|\s+|.", re.DOTALL)
_REWRITES = re.compile(r"\b(replace|join|lower|upper|title|capitalize|swapcase|casefold|translate)\b")
"""Words of a template that may remove parts of a message, or change its letters, before it enters the prompt."""
_SOUGHT = re.compile(r"</?\w[^<>'\"{}\s]*>|\[/?\w+\]")
"""Strings that a template may search for within a message: `</think>`."""
_ROLES = frozenset(
    "system user assistant tool developer function model ipython environment observation context tool_call "
    "tool_response".split()
)
"""Roles that templates put between the brackets of their markers (`<|user|>`): only the template may spell them."""


class ControlTokens:
    """Guards the strings of messages, and encodes the text that a template made of them."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        """Find the added tokens that control the model: the special ones, and others that mark parts of a chat.

        Other added tokens (tags, runs of spaces) are ordinary vocabulary, which users may write.
        """
        self._tokenizer = tokenizer
        added = sorted(tokenizer.raw.get_added_tokens_decoder().items())
        self._added = [(index, token) for index, token in added if token.content]
        self._control = {t.content: t for _, t in self._added if t.special or _is_marker(t.content, template)}
        sought = sorted(set(_SOUGHT.findall(template))) if _REWRITES.search(template) else None
        self._special = _Spelling([text for text, token in self._control.items() if token.special], sought)
        self._all = _Spelling(list(self._control), sought)
        # A normalizer may turn other text into a control token (`<|END|>`, in lower case).
        self._changed = tokenizer.raw.normalizer is not None and any(t.normalized for t in self._control.values())

    def guard(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message with its strings marked.

        The text of an assistant message may contain markers that the model wrote itself (`<think>`) and templates
        search for; only special tokens are marked in it. The arguments of its calls are marked like other strings.
        """
        role = message.get("role")
        own = self._special if role == "assistant" else self._all
        spellings = {key: self._all if key == "tool_calls" else own for key in message}
        guarded = {spellings[key].mark(key): _marked(value, spellings[key]) for key, value in message.items()}
        return {**guarded, "role": role} if role in _ROLES else guarded

    def guard_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Template variables of the request, marked like messages."""
        return {self._all.mark(key): _marked(value, self._all) for key, value in variables.items()}

    def encode(self, rendered: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a rendered prompt, in which only unmarked control tokens are encoded as such."""
        text = unmarked(rendered)
        if len(text) == len(rendered) and not self._changed:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        secret = self._all.replace(rendered, self._secrets)
        ids = self._blind.encode(unmarked(secret), add_special_tokens=False)
        if not self._control_ids.isdisjoint(ids):  # the model itself may contain a control token:
            cut = secret.replace(MARK, self._cut).replace(_SOLE, "")  # then its spelling is cut in two
            ids = self._blind.encode(cut, add_special_tokens=False)
        ids = [known for i in ids if (known := self._names.get(i, i)) is not None]
        if not add_special_tokens:
            return ids
        before, after = self._frame
        return [*before, *ids, *after]

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(index for index, token in self._added if token.content in self._control)

    @cached_property
    def _secrets(self) -> dict[str, str]:
        key = secrets.token_hex(16)
        return {text: f"\ue000{key}.{number}\ue001" for number, text in enumerate(self._control)}

    @cached_property
    def _cut(self) -> str:
        return f"\ue000{secrets.token_hex(16)}\ue001"

    @cached_property
    def _blind(self) -> Tokenizer:
        """Tokenizer over the same model that matches control tokens only by their secret names."""
        raw = self._tokenizer.raw
        blind = RawTokenizer(raw.model)
        if raw.normalizer is not None:
            blind.normalizer = raw.normalizer
        if raw.pre_tokenizer is not None:
            blind.pre_tokenizer = raw.pre_tokenizer
        # New ids follow the number of entries; in a vocabulary with holes these are taken: fill up to the largest.
        known = blind.get_vocab(with_added_tokens=False)
        largest = max([*known.values(), *(index for index, _ in self._added)], default=-1)
        fill = f"\ue000{secrets.token_hex(16)}"
        blind.add_tokens([AddedToken(f"{fill}{i}", normalized=False) for i in range(largest + 1 - len(known))])
        for _, token in self._added:
            if token.content in self._control:
                blind.add_tokens([_renamed(token, self._secrets[token.content])])
            else:
                blind.add_tokens([token])
        blind.add_tokens([AddedToken(self._cut, normalized=False)])
        return Tokenizer(blind, {}, frozenset(), None, 0)

    @cached_property
    def _names(self) -> dict[int, int | None]:
        """Ids of the blind tokenizer's added tokens to the true ones; None for the separator."""
        raw = self._blind.raw
        texts = {self._secrets.get(token.content, token.content): index for index, token in self._added}
        known = {raw.token_to_id(text): index for text, index in [*texts.items(), (self._cut, None)]}
        return {blind: index for blind, index in known.items() if blind is not None}

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """Tokens that the tokenizer puts before and after a text when it adds special tokens."""
        bare = self._tokenizer.encode("a", add_special_tokens=False)
        framed = self._tokenizer.encode("a", add_special_tokens=True)
        at = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
        return framed[:at], framed[at + len(bare) :]


class _Spelling:
    """Finds whole or partial spellings of a set of tokens in texts.

    Args:
        sought: if the template rewrites its input, the strings that it searches for; else None. A template that
            rewrites may remove the characters between the first character of a token and the rest, so the first one
            alone counts as a token, too, except within these strings.
    """

    def __init__(self, tokens: Sequence[str], sought: Sequence[str] | None = None) -> None:
        longest_first = sorted(tokens, key=lambda text: (-len(text), text))  # as tokenizers match: leftmost, longest
        one_of = "|".join(re.escape(text) + (f"(?!{_SOLE})" if len(text) == 1 else "") for text in longest_first)
        self._token = re.compile(one_of or r"(?!)")
        start = f"(?=(?:{one_of or '(?!)'}))."
        signs = {text[0] for text in tokens if len(text) > 1 and not (text[0].isalnum() or text[0].isspace())}
        signs |= {text[1] for text in tokens if text[1:2] in ("|", "｜")}  # a template may itself write the first
        self._signs = signs if sought is not None else set()
        if sought is not None and signs:
            kept = "|".join(re.escape(text) for text in sought if text not in tokens)
            start += f"|(?!{kept or '(?!)'})[{re.escape(''.join(sorted(signs)))}]"
        self._start = re.compile(start, re.DOTALL)
        self._single = frozenset(text for text in tokens if len(text) == 1)
        self._several = tuple(text for text in tokens if 1 < len(text) <= _LONGEST_EDGE)
        self._heads = frozenset(text[:end] for text in self._several for end in range(1, len(text)))
        self._tails = frozenset(text[start:] for text in self._several for start in range(1, len(text)))
        self._reach = max(map(len, self._several), default=1)

    def replace(self, rendered: str, names: Mapping[str, str]) -> str:
        """Every whole token replaced by its name."""
        return self._token.sub(lambda match: names[match[0]], rendered)

    def mark(self, text: str) -> str:
        """Break every token that the text spells."""
        if self._token.search(text) is None and not any(sign in text for sign in self._signs):
            return text
        return self._start.sub(lambda match: match[0] + (_SOLE if match[0] in self._single else "") + MARK, text)

    def mark_edges(self, text: str) -> str:
        """Mark both ends of a text where they may complete a token with adjacent template text, trimmed or not."""
        core = text.strip()
        if not core:
            return text
        at = text.index(core)
        reach = range(1, min(len(core), self._reach) + 1)
        tail = len(core) < self._reach and any(core in token for token in self._several)
        before = MARK if tail or any(core[:size] in self._tails for size in reach) else ""
        after = MARK if any(core[-size:] in self._heads for size in reach) else ""
        return f"{text[:at]}{before}{self.mark(core)}{after}{text[at + len(core) :]}"


def unmarked(text: str) -> str:
    """The text without marks."""
    return text.replace(MARK, "").replace(_SOLE, "")  # 100 times as fast as `translate`


def _marked(value: object, spelling: _Spelling) -> object:
    """A JSON value with its strings marked. Templates search for keys, so keys are marked only where they spell all."""
    if isinstance(value, str):
        return spelling.mark_edges(value)
    if isinstance(value, list):
        return [_marked(item, spelling) for item in value]
    if isinstance(value, dict):
        return {spelling.mark(str(key)): _marked(item, spelling) for key, item in value.items()}
    return value


def _is_marker(text: str, template: str) -> bool:
    """Whether an added token that is not special marks parts of a chat all the same."""
    return _MARKER.fullmatch(text) is not None or (text in template and _SPELLED_OUT.fullmatch(text) is None)


def _renamed(token: AddedToken, name: str) -> AddedToken:
    # Secret names are matched in the raw text, so that no normalizer can lose them.
    return AddedToken(name, single_word=False, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
