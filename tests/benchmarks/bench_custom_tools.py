"""Codex's `apply_patch` bound by its grammar: whether sampled inputs parse, and the CPU time that the grammar adds.

- Inputs sampled from random logits that end within 600 tokens: those that do not match the language, written as one
  regular expression. `--grammar FILE` takes Codex's own text instead of ours.
- CPU time at the gateway before a recorded first request of Codex is submitted, with and without the grammar, in turns.
"""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from serving.values.sequence import Grammar
from tests.agents.grammars import PATCH
from tests.agents.recording import read
from tests.agents.scripted_server import bundled_model
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, post
from tests.gateway.api.tools.agent_tools import CUSTOM

JSON = {"content-type": "application/json"}
MOST_TOKENS = 600
_ADD, _DELETE = r"\*\*\* Add File: .+\n(?:\+.*\n)+", r"\*\*\* Delete File: .+\n"
_ROWS = r"(?:(?:(?:@@|@@ .+)|[+\- ].*)\n)+(?:\*\*\* End of File\n)?"
_UPDATE = rf"\*\*\* Update File: .+\n(?:\*\*\* Move to: .+\n)?(?:{_ROWS})?"
LANGUAGE = re.compile(rf"\*\*\* Begin Patch\n(?:{_ADD}|{_DELETE}|{_UPDATE})+\*\*\* End Patch\n?")


def custom(definition: str) -> dict[str, Any]:
    """`apply_patch` with a grammar."""
    return {**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": definition}}


def sampled(harness: Harness, grammar: Grammar, draw: np.random.Generator) -> list[int] | None:
    """Tokens of one call, from random logits that favour the ends of lines; None if it does not end in time."""
    model = harness.model
    matcher, size = model.grammars.fresh(grammar), model.grammars.vocabulary.size
    words = np.zeros(-(-(size + 1) // 32), np.uint32)
    favoured = np.array([re.search(rb'[\\"*]|^n', token) is not None for token in model.grammars.vocabulary.tokens])
    bias = draw.uniform(3, 9)
    ids: list[int] = []
    while len(ids) < MOST_TOKENS:
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[:size])
        if not len(allowed):
            return ids if bits[size] else None  # the bit of the end
        ids.append(int(allowed[np.argmax(draw.gumbel(size=len(allowed)) + bias * favoured[allowed])]))
        matcher.consume_token(ids[-1])
    return None


def invalid(harness: Harness, definition: str, count: int) -> int:
    """How many of `count` sampled inputs are no patches, or no single call."""
    wrong, draw = 0, np.random.default_rng(5)
    asked = {"input": "hi", "tools": [custom(definition)], "tool_choice": "required", "parallel_tool_calls": False}
    post(harness.app, "/v1/responses", asked)
    grammar = harness.backend.jobs[-1].sequences[0].sampling.grammar
    assert grammar is not None
    for number in range(count):
        while (ids := sampled(harness, grammar, draw)) is None:
            continue
        script = Script((*ids, *harness.model.eos_ids), per_update=MOST_TOKENS)
        harness.script_of = lambda _, script=script: script  # type: ignore[misc]
        output = post(harness.app, "/v1/responses", asked).json()["output"]
        wrong += len(output) != 1 or LANGUAGE.fullmatch(output[0].get("input", "")) is None
        if number % 100 == 99:
            progress(f"{number + 1} inputs, {wrong} wrong")
    return wrong


async def added_ms(harness: Harness, definition: str, turns: int) -> list[float]:
    """CPU time that the grammar adds before a request is submitted [ms], without a first turn that compiles."""
    body = dict(read("codex")[0].body)
    others = [tool for tool in body["tools"] if tool["type"] != "custom"]
    bodies = {
        "bound": {**body, "tools": [*others, custom(definition)]},
        "free": {**body, "tools": [*others, {**CUSTOM, "format": {"type": "text"}}]},
    }
    taken: dict[str, list[float]] = {"bound": [], "free": []}
    begun = 0.0

    def script(_: object) -> Script:
        taken[kind].append((time.process_time() - begun) * 1e3)
        return harness.say("Yes.")

    harness.script_of = script
    async with httpx.AsyncClient(transport=httpx.ASGITransport(harness.app), base_url="http://test") as client:
        for turn in range(turns + 1):
            for kind in ("bound", "free") if turn % 2 else ("free", "bound"):
                content = json.dumps(bodies[kind])
                begun = time.process_time()
                reply = await client.post("/v1/responses", content=content, headers=JSON)
                assert reply.status_code == 200, reply.text
    return [bound - free for bound, free in zip(taken["bound"][1:], taken["free"][1:], strict=True)]


def main() -> None:
    """Measure and report."""
    parser = make_parser("bench_custom_tools", __doc__, 30)
    parser.add_argument("--inputs", type=int, default=1000, help="sampled inputs")
    parser.add_argument("--grammar", type=Path, help="file with another grammar of the same language")
    args = parser.parse_args()
    definition = args.grammar.read_text() if args.grammar else PATCH
    facts = conditions(None, inputs=args.inputs)
    show_conditions(facts)
    harness = Harness(bundled_model())
    added = asyncio.run(added_ms(harness, definition, args.repeats))
    wrong = invalid(harness, definition, args.inputs)
    figures = [
        Figure("CPU time that the grammar adds at the gateway", "ms", tuple(added), 5.0),
        Figure("sampled inputs that do not parse", "", (float(wrong),), 0.0),
    ]
    report("bench_custom_tools", facts, figures)


if __name__ == "__main__":
    main()
