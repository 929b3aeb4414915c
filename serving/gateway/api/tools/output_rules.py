"""Grammar of a whole output: reasoning, then text or calls, as far as the request constrains them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from serving.errors import GrammarError
from serving.gateway.api.tools.family import Family
from serving.gateway.api.tools.lark import CallRule, Spelling, either, json_of
from serving.grammar.text import json_options
from serving.values.sequence import Grammar, GrammarKind

_START = re.compile(r"^([ \t]*)start(?=\s*(?:\[[^\]\n]*\])?\s*:)", re.MULTILINE)
_ANSWER = "the_answer"


class Thinking(Enum):
    """Whether an output may start with reasoning."""

    NO = "none is expected"
    MAYBE = "the model may open it"
    OPENED = "the prompt has opened it"


@dataclass(frozen=True, slots=True)
class OutputForm:
    """Form of a request's outputs.

    Args:
        tools: callable tools.
        forced: whether a call is required.
        most: most calls; None = any number.
        answer: grammar of an output without calls, after its reasoning; None = any text.
        budget: most reasoning tokens.
    """

    tools: Sequence[CallRule] = ()
    forced: bool = False
    most: int | None = None
    answer: Grammar | None = None
    thinking: Thinking = Thinking.NO
    budget: int | None = None


def output_grammar(family: Family, spelling: Spelling, form: OutputForm) -> Grammar:
    """The grammar.

    Raises: GrammarError if this form cannot be expressed.
    """
    calls = family.rules(spelling, form.tools, form.most) if form.tools else []
    answer, rules = _answer(form.answer)
    if family.frame is not None:
        rules += family.frame(spelling, "calls" if calls else None, answer, form.forced, form.budget)
    else:
        think, own = _reasoning(family, spelling, form)
        options: list[str] = []
        further: list[str] = []
        if answer is not None:
            options.append(answer)
        elif not form.forced:
            options, further = _text(family, spelling, form)
        if calls and (form.forced or answer is not None):
            options.append("calls")
        if think and (form.forced or answer is not None):
            options = [f"SPACE {option}" for option in options]
        if think and form.thinking is Thinking.MAYBE and options and options[0].startswith("<[^"):
            think = f"{options[0].partition('*')[0]}* {think.replace('SPACE ', '')}"  # text may come before it
        rules += [f"start: {think}({either(options)})", *own, *further, r"SPACE: /\s{0,4}/"]
    return Grammar(GrammarKind.LARK, "\n".join([*rules, *calls]))


def _reasoning(family: Family, spelling: Spelling, form: OutputForm) -> tuple[str, list[str]]:
    """Start of the grammar, for reasoning, and its rules."""
    if family.think is None or form.thinking is Thinking.NO:
        return "", []
    begin, end = family.think
    if spelling.has_token(end):
        if form.budget is None:
            thought = [f"thought: {spelling.all_but(end)}*"]
        else:
            thought = [f"thought[max_tokens={form.budget}]: /(?s:.*)/"]
        if form.budget == 0:
            thought = ['thought: ""']
        rules = [f"reasoning: thought {spelling.mark(end)}", *thought]
    elif form.budget is None:
        rules = [f"reasoning[lazy]: /(?s:.*){_escaped(end)}/"]
    else:
        raise GrammarError("'thinking_token_budget' needs a model whose reasoning ends with a token")
    if form.thinking is Thinking.OPENED:
        return "reasoning ", rules
    return f"(SPACE {spelling.mark(begin)} reasoning)? ", rules


def _text(family: Family, spelling: Spelling, form: OutputForm) -> tuple[list[str], list[str]]:
    """Free text, followed by calls if there are tools: its alternatives, and its rules."""
    barred = [name for name in (*family.triggers, *(family.think or ())[:1]) if spelling.has_token(name)]
    if not form.tools:
        return [f"{spelling.all_but(*barred)}*"], []
    if family.holds:
        return ["PLAIN", "UP_TO calls_behind"], ["PLAIN: /(?s:.*)/", f"UP_TO: /(?s:.*){_escaped(family.holds)}/"]
    if family.triggers and spelling.has_token(family.triggers[0]):
        return [f"{spelling.all_but(*barred)}* calls?"], []
    if family.triggers:
        stop = f"(?s:.*){_escaped(family.triggers[0])}(?s:.*)"
    else:
        stop = f"({'|'.join(_escaped(head) for head in family.heads(form.tools))})(?s:.*)"
    options = ["FREE calls?"] if family.triggers else ["FREE", "calls"]
    return options, [f"FREE: /(?s:.*)/ & ~/{stop}/"]


def _answer(grammar: Grammar | None) -> tuple[str | None, list[str]]:
    """Name and rules of an answer without calls; the name is None if it may be any text."""
    if grammar is None:
        return None, []
    if grammar.kind is GrammarKind.REGEX:
        return _ANSWER, [f"{_ANSWER}: /{grammar.text.replace('/', chr(92) + '/')}/"]
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return _ANSWER, [f"{_ANSWER}: {json_of(grammar.text, json_options(grammar))}"]
    text, found = _START.subn(rf"\1{_ANSWER}", grammar.text)
    if found != 1:
        raise GrammarError("after reasoning, or with tools, it needs exactly one rule named 'start'")
    return _ANSWER, [text]


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace(r"\<", "<").replace(r"\>", ">")
