"""Recorded outputs of models, from canitoolcall, as pieces of text and the markers that were tokens.

The records have token ids without the vocabularies, so the ids of markers are listed in this module. Between markers
the text is cut anywhere, which covers every way in which a vocabulary could have cut it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import canitoolcall

from serving.gateway.api.tools.choose import FAMILIES
from serving.gateway.api.tools.family import Family

Piece = tuple[str, bool]
"""Text, and whether it is a marker that was one token."""

_QWEN = {151657: "<tool_call>", 151658: "</tool_call>", 151667: "<think>", 151668: "</think>"}
_QWEN35 = {248058: "<tool_call>", 248059: "</tool_call>", 248068: "<think>", 248069: "</think>"}
_DEEPSEEK = {
    128806: "<｜tool▁calls▁begin｜>",
    128807: "<｜tool▁calls▁end｜>",
    128808: "<｜tool▁call▁begin｜>",
    128809: "<｜tool▁call▁end｜>",
    128814: "<｜tool▁sep｜>",
    128793: "｜DSML｜",
    128798: "<think>",
    128799: "</think>",
}
_DEEPSEEK_V4 = {128825: "｜DSML｜", 128821: "<think>", 128822: "</think>"}
_GLM = {
    151350: "<think>",
    151351: "</think>",
    151352: "<tool_call>",
    151353: "</tool_call>",
    151356: "<arg_key>",
    151357: "</arg_key>",
    151358: "<arg_value>",
    151359: "</arg_value>",
}
_GLM5 = {token + 3491: text for token, text in _GLM.items()}
_HARMONY = {
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
}
_KIMI = {
    163595: "<|tool_calls_section_begin|>",
    163596: "<|tool_calls_section_end|>",
    163597: "<|tool_call_begin|>",
    163598: "<|tool_call_argument_begin|>",
    163599: "<|tool_call_end|>",
    163606: "<think>",
    163607: "</think>",
}
_MISTRAL = {9: "[TOOL_CALLS]", 32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}
_KINDS: Mapping[str, tuple[str, Mapping[int, str]]] = {
    "Qwen3-0.6B": ("hermes", _QWEN),
    "Qwen3-4B-Thinking-2507": ("hermes", _QWEN),
    "Qwen3-4B-Instruct-2507": ("hermes", _QWEN),
    "Qwen3-Coder-30B-A3B-Instruct": ("qwen-coder", _QWEN),
    "Qwen3-Coder-Next": ("qwen-coder", _QWEN),
    "Qwen3.5-9B": ("qwen-coder", _QWEN35),
    "Qwen3.8-27B": ("qwen-coder", _QWEN35),
    "DeepSeek-V3-0324": ("deepseek-v3", _DEEPSEEK),
    "DeepSeek-V3.1": ("deepseek-v3.1", _DEEPSEEK),
    "DeepSeek-V3.2": ("deepseek-v3.2", _DEEPSEEK),
    "DeepSeek-V4-Flash": ("deepseek-v3.2", _DEEPSEEK_V4),
    "DeepSeek-V4.1-Flash": ("deepseek-v3.2", _DEEPSEEK_V4),
    "GLM-4.5": ("glm", _GLM),
    "GLM-4.7": ("glm", _GLM),
    "GLM-5.3": ("glm", _GLM5),
    "gpt-oss-20b": ("harmony", _HARMONY),
    "Kimi-K2-Instruct-0905": ("kimi-k2", _KIMI),
    "Kimi-K2.6": ("kimi-k2", _KIMI),
    "Llama-3.3-70B-Instruct": ("llama", {128010: "<|python_tag|>"}),
    "Devstral-Small-2507": ("mistral", _MISTRAL),
    "Magistral-Small-2506": ("mistral-think-text", _MISTRAL),
    "Magistral-Small-2509": ("mistral", _MISTRAL),
    "Ministral-3-14B-Instruct-2512": ("mistral", _MISTRAL),
    "Ministral-3-14B-Reasoning-2512": ("mistral", _MISTRAL),
    "Mistral-7B-Instruct-v0.3": ("mistral", {5: "[TOOL_CALLS]"}),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", _MISTRAL),
}


@dataclass(frozen=True)
class Recorded:
    """One output and its meaning.

    Args:
        tools: parameters by name.
        rendered: made by the model's own template.
        opened: the prompt has opened the reasoning.
        expected: content, reasoning and calls; None where the record has no call and leaves the text open.
    """

    name: str
    family: Family
    tokens: Mapping[str, int]
    pieces: tuple[Piece, ...]
    tools: Mapping[str, Mapping[str, Any]]
    rendered: bool
    opened: bool
    expected: tuple[str | None, str | None, tuple[tuple[str, Any], ...]] | None


@cache
def recorded() -> tuple[Recorded, ...]:
    """All records of the supported families."""
    folder = Path(canitoolcall.__file__).parent / "_data" / "fixtures"
    found = []
    for file in sorted(folder.glob("*/*.jsonl")):
        prompts = _default_prompts(file.parent / "family.json")
        for line in file.read_text().splitlines():
            record = json.loads(line)
            kind = _KINDS.get(record["models"][0].rpartition("/")[2])
            if kind is not None:
                found.append(_recorded(record, *kind, prompts))
    return tuple(found)


def _default_prompts(path: Path) -> dict[str, str]:
    family = json.loads(path.read_text())
    return {model["repo"]: model["default_generation_prompt"] for model in family["reference_models"]}


def _recorded(record: Any, family: str, ids: Mapping[int, str], prompts: Mapping[str, str]) -> Recorded:
    prompt = record.get("generation_prompt")
    if prompt is None:
        prompt = prompts[record["models"][0]]
    expected = record.get("expected")
    calls = tuple((call["name"], call["arguments"]) for call in (expected or {}).get("tool_calls", ()))
    functions = [tool["function"] for tool in record["tools"]]
    return Recorded(
        record["id"],
        FAMILIES[family],
        {text: token for token, text in ids.items()},
        tuple(_pieces(record["raw_output"], record["output_token_ids"], ids)),
        {one["name"]: one.get("parameters") or {} for one in functions},
        record["provenance"]["kind"] == "template_render",
        prompt.rstrip().endswith(("<think>", "[THINK]")),
        None if expected is None else (expected["content"] or None, expected["reasoning_content"] or None, calls),
    )


def _pieces(raw: str, token_ids: list[int], ids: Mapping[int, str]) -> Iterator[Piece]:
    """The text cut at its markers; where a marker's text occurs more often than its token, at the most likely
    places.
    """
    sizes = [0]
    names = []
    for token in token_ids:
        if token in ids:
            names.append(ids[token])
            sizes.append(0)
        else:
            sizes[-1] += 1
    at = 0
    for start, name in zip(_places(raw, names, sizes), names, strict=True):
        if start > at:
            yield raw[at:start], False
        yield name, True
        at = start + len(name)
    if at < len(raw):
        yield raw[at:], False


def _places(raw: str, names: list[str], sizes: list[int]) -> list[int]:
    """Start of each marker, chosen so that the texts between them best fit the numbers of tokens between them."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for name, size in zip(names, sizes, strict=False):
        following: dict[int, tuple[float, list[int]]] = {}
        for end, (cost, places) in best.items():
            start = raw.find(name, end)
            while start >= 0:
                gap = len(raw[end:start].encode())
                if (gap == 0) == (size == 0):
                    total = cost + abs(gap - 3.7 * size)
                    known = following.get(start + len(name))
                    if known is None or total < known[0]:
                        following[start + len(name)] = total, [*places, start]
                start = raw.find(name, start + 1)
        best = following
    rest = sizes[-1]
    return min((cost + abs(len(raw) - end - 3.7 * rest), places) for end, (cost, places) in best.items())[1]
