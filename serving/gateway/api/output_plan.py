"""Plan of a request's outputs: their grammar, and the parsing into text, reasoning and calls."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from serving.errors import GrammarError, InvalidRequestError
from serving.gateway.api.grammar import Wished, compiled, grammar_of, wished_grammar
from serving.gateway.api.schema import ChatCompletionRequest, GenerationRequest
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.tools.custom_tools import INPUT
from serving.gateway.api.tools.family import Family, OutputParser
from serving.gateway.api.tools.lark import CallRule
from serving.gateway.api.tools.marks import ToolMarks
from serving.gateway.api.tools.output_rules import OutputForm, Thinking, output_grammar
from serving.gateway.api.tools.reader import Schemas
from serving.gateway.api.tools.tool_fields import Tool, ToolUse, loosened, tool_use
from serving.grammar.schema import any_of_for_one_of, closed_schema
from serving.values.sequence import Grammar, GrammarKind

_TAIL = 8
"""Tokens at the end of a prompt: more than any template puts after the marker that opens reasoning."""


@dataclass(frozen=True, slots=True)
class OutputReading:
    """How the outputs of a request are parsed.

    Args:
        tools: parameters of the offered tools, by name.
        customs: names of the offered tools that are called with a text.
        thinking: whether outputs may have reasoning.
        shows_reasoning: whether reasoning is sent to the client.
        legacy: whether the request uses `functions` instead of `tools`.
        forced: whether a grammar allows only calls.
    """

    family: Family
    marks: ToolMarks
    tools: Schemas
    thinking: Thinking
    shows_reasoning: bool = True
    legacy: bool = False
    forced: bool = False
    customs: frozenset[str] = frozenset()

    def parser(self) -> OutputParser:
        opened = self.thinking is Thinking.OPENED
        return OutputParser(
            self.family, self.marks, self.tools, customs=self.customs, opened=opened, calls_only=self.forced
        )


def require_family(model: ServedModel) -> Family:
    """The family whose format a model uses for tool calls.

    Raises: InvalidRequestError naming what is missing.
    """
    if model.tool_family is None:
        why = (
            '[model] tools is "none"' if model.tools == "none" else "its chat template defines no format for tool calls"
        )
        raise InvalidRequestError(
            f"this model cannot call 'tools': {why}; set [model] tools in the configuration",
            param="tools",
            code="unsupported_parameter",
        )
    return model.tool_family


def output_plan(
    body: GenerationRequest, model: ServedModel, prompt: Sequence[int]
) -> tuple[Grammar | None, OutputReading | None]:
    """The grammar, compiled once, and the reading; None for outputs of plain text.

    Raises: InvalidRequestError naming the field.
    """
    if not isinstance(body, ChatCompletionRequest):
        return grammar_of(body, model), None
    use, family = tool_use(body), model.tool_family
    if use is not None:
        family = require_family(model)
    thinking = Thinking.NO if family is None else _thinking(family, model, prompt)
    if body.thinking_token_budget is not None and not can_reason(model):
        field = "thinking_token_budget"
        message = f"'{field}' is not for this model, which does not reason"
        raise InvalidRequestError(message, param=field, code="unsupported_parameter")
    if family is None or (use is None and thinking is Thinking.NO and family.reads_all is None):
        return grammar_of(body, model), None
    reading = OutputReading(
        family,
        model.tool_marks,
        {} if use is None else {tool.name: _read_by(tool) for tool in use.offered},
        thinking,
        body.include_reasoning is not False,
        use is not None and use.legacy,
        use is not None and use.forced and family.frame is None,  # otherwise text may precede a call
        frozenset() if use is None else frozenset(tool.name for tool in use.offered if tool.custom),
    )
    return _grammar(body, model, family, use, thinking), reading


def can_reason(model: ServedModel) -> bool:
    """Whether a model may reason before its response: its tokens or its template contain the markers."""
    family = model.tool_family
    if family is None or family.think is None:
        return family is not None and family.frame is not None
    template = "" if model.chat_template is None else model.chat_template.source
    return all(one in model.tool_marks.tokens or one in template for one in family.think)


def _thinking(family: Family, model: ServedModel, prompt: Sequence[int]) -> Thinking:
    """Whether an output after this prompt may have reasoning."""
    if not can_reason(model):
        return Thinking.NO
    if family.think is None:
        return Thinking.MAYBE
    begin, end = family.think
    tail = model.tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    if tail.endswith(begin):
        return Thinking.OPENED
    return Thinking.NO if tail.endswith(end) else Thinking.MAYBE


def _grammar(
    body: ChatCompletionRequest, model: ServedModel, family: Family, use: ToolUse | None, thinking: Thinking
) -> Grammar | None:
    wished, budget = wished_grammar(body, model), body.thinking_token_budget
    if use is not None and use.forced:
        if wished is not None and wished.field.startswith("response_format"):
            wished = None  # it constrains messages, and a call replaces the message
        if wished is not None:
            message = f"'{wished.field}' cannot be followed by an output that 'tool_choice' makes a call"
            raise InvalidRequestError(message, param=wished.field, code="invalid_value")
        _must_end(body, model, "tool_choice")
    elif wished is None and budget is None and (use is None or body.ignore_eos or body.min_tokens):
        return None  # outputs that may continue after a complete text are constrained only if required
    form = OutputForm(
        tools=[] if use is None else [_rule(tool) for tool in use.callable],
        forced=use is not None and use.forced,
        most=_most_calls(use, model),
        answer=None if wished is None else wished.grammar,
        thinking=thinking,
        budget=budget,
    )
    try:
        return compiled(model, output_grammar(family, model.spelling, form))
    except GrammarError as error:
        failure = _unfollowed(_field(body, use, wished), error)
        if use is None:
            raise failure from error
        rules = _usable(use.callable, model)
    loose = [
        rule if tool.strict else CallRule(tool.name, loosened(tool.parameters))
        for tool, rule in zip(use.callable, rules, strict=True)
    ]
    for tools in (rules, loose):
        with suppress(GrammarError):
            return compiled(model, output_grammar(family, model.spelling, replace(form, tools=tools)))
    if use.forced or wished is not None or budget is not None or any(tool.strict for tool in use.callable):
        raise failure
    return None


def _usable(tools: Sequence[Tool], model: ServedModel) -> list[CallRule]:
    """Rules of tools, each with its schema; if the schema cannot be followed, only with its names.

    Raises: InvalidRequestError if a strict tool's schema cannot be followed.
    """
    rules = []
    for tool in tools:
        rule = _rule(tool)
        form, text = GrammarKind.JSON_SCHEMA, json.dumps(rule.schema)
        if rule.text is not None:
            form, text = GrammarKind.LARK, rule.text
        try:
            model.grammars.fresh(Grammar(form, text))
        except (GrammarError, ValueError) as error:
            if tool.strict:
                field = f"{tool.field}.parameters" if tool.grammar is None else tool.grammar.field
                raise _unfollowed(field, error) from error
            rule = CallRule(tool.name, loosened(tool.parameters))
        rules.append(rule)
    return rules


def _most_calls(use: ToolUse | None, model: ServedModel) -> int | None:
    """Most calls of a turn; None if the model may end the turn itself. Small models repeat forced calls endlessly."""
    if use is None or (use.several and not use.forced):
        return None
    return (model.most_calls or None) if use.several else 1


def _rule(tool: Tool) -> CallRule:
    """Grammar rule of a tool's calls. Raises: InvalidRequestError for an invalid input grammar."""
    if tool.grammar is None:
        return CallRule(tool.name, _arguments(tool))
    try:
        return CallRule(tool.name, tool.parameters, tool.grammar.quoted())
    except GrammarError as error:
        raise _unfollowed(tool.grammar.field, error) from error


def _read_by(tool: Tool) -> Mapping[str, Any]:
    """The schema for parsing a call's arguments. An input with a grammar is a JSON string in every family, so it gets
    no type; with the type `string` some families would read it verbatim."""
    return tool.parameters if tool.grammar is None else {**tool.parameters, "properties": {INPUT: {}}}


def _arguments(tool: Tool) -> dict[str, Any]:
    """Schema of a tool's arguments. A call of a non-strict tool may match two options of a `oneOf`."""
    schema: dict[str, Any] = closed_schema(tool.parameters)
    return schema if tool.strict else any_of_for_one_of(schema)


def _field(body: ChatCompletionRequest, use: ToolUse | None, wished: Wished | None) -> str:
    if wished is not None:
        return wished.field
    return "thinking_token_budget" if body.thinking_token_budget is not None or use is None else "tools"


def _unfollowed(field: str, error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"'{field}' cannot be followed: {error}", param=field, code="invalid_value")


def _must_end(body: ChatCompletionRequest, model: ServedModel, field: str) -> None:
    """Require that outputs may end where they are complete. Raises: InvalidRequestError."""
    if not any(token < model.token_limit for token in model.eos_ids):
        message = f"'{field}' needs a model with an end token, and this one names none"
        raise InvalidRequestError(message, param=field, code="invalid_value")
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body, name):
            message = f"'{name}' contradicts '{field}': an output ends where it is complete"
            raise InvalidRequestError(message, param=name, code="invalid_value")
