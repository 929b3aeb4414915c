"""All families, and the choice of a model's family: by the configuration, else by its template and tokens."""

from collections.abc import Callable, Collection, Mapping

from serving.gateway.api.tools.deepseek import DEEPSEEK_V3, DEEPSEEK_V31, DSML
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.glm import GLM
from serving.gateway.api.tools.harmony import HARMONY
from serving.gateway.api.tools.hermes import HERMES
from serving.gateway.api.tools.kimi import KIMI_K2
from serving.gateway.api.tools.llama import LLAMA
from serving.gateway.api.tools.mistral import MISTRAL, MISTRAL_TEXT
from serving.gateway.api.tools.qwen_coder import QWEN_CODER

_ALL = (
    HARMONY,
    KIMI_K2,
    DSML,
    DEEPSEEK_V31,
    DEEPSEEK_V3,
    MISTRAL,
    MISTRAL_TEXT,
    GLM,
    QWEN_CODER,
    HERMES,
    LLAMA,
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
"""By name, the most specific first."""


def family_of(template: str, tokens: Collection[str]) -> Family | None:
    """The family recognized from a chat template and a vocabulary's added tokens; None if there is none.

    A format that the template mentions has precedence; tokens alone decide only if no other format has them.
    """
    for family, tells in _SIGNS:
        if tells(template, tokens):
            return family
    return None


def _has_token(name: str) -> Callable[[str, Collection[str]], bool]:
    return lambda _, tokens: name in tokens


def _contains(*words: str) -> Callable[[str, Collection[str]], bool]:
    return lambda template, _: all(word in template for word in words)


def _deepseek(template: str, tokens: Collection[str]) -> bool:
    return "<｜tool▁calls▁begin｜>" in tokens


_SIGNS: tuple[tuple[Family, Callable[[str, Collection[str]], bool]], ...] = (
    (HARMONY, lambda _, tokens: "<|channel|>" in tokens and "<|message|>" in tokens),
    (KIMI_K2, _has_token("<|tool_calls_section_begin|>")),
    (DSML, _contains("｜DSML｜")),
    (DEEPSEEK_V3, lambda template, tokens: _deepseek(template, tokens) and "```json" in template),
    (DEEPSEEK_V31, lambda template, tokens: _deepseek(template, tokens) and "tool▁calls▁begin" in template),
    (DSML, _has_token("｜DSML｜")),
    (MISTRAL_TEXT, lambda template, tokens: "[TOOL_CALLS]" in tokens and "<think>" in template),
    (MISTRAL, _has_token("[TOOL_CALLS]")),
    (GLM, _contains("<arg_key>")),
    (QWEN_CODER, _contains("<function=")),
    (HERMES, _contains("<tool_call>")),
    (LLAMA, _has_token("<|python_tag|>")),
    (LLAMA, _contains('"name":', '"parameters":')),
)
"""Families with their tests; the first match counts."""
