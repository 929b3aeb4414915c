"""Step 2: a conversation whose prompts include all earlier turns, and the share of tokens that need no computation."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key
from loadgen.report.table import Table, columns, table_of
from serving.client.conversation import ChatConversation, ChatReply
from serving.tools.demo.stage import Stage, Step, StepReport

QUESTIONS = (
    "Tell me a story about a brave girl and a boat.",
    "What did the girl do then?",
    "Who was her friend?",
    "What did they find?",
    "How does the story end?",
)
_FIELDS = {"max_tokens": 60, "seed": 7}
_LANE_PX = 28


@dataclass(frozen=True, slots=True)
class CachedTurn:
    """Prompt tokens of one turn: all, those not computed, and of these those loaded from the KV-cache pool."""

    prompt: int
    cached: int
    pulled: int


def run(stage: Stage) -> StepReport:
    """Hold the conversation. Raises: UnavailableError."""
    conversation = ChatConversation(stage.system.url, None, stage.system.model, None, _FIELDS)
    turns = []
    for question in QUESTIONS:
        stage.narrator.question(question)
        with closing(conversation.ask(question)) as pieces:
            for _ in pieces:
                pass
        turns.append(cached_turn(conversation.reply))
        stage.narrator.line(turn_line(turns[-1]))
    return cache_report(turns)


def cached_turn(reply: ChatReply) -> CachedTurn:
    """A turn's figures."""
    details = reply.usage["prompt_tokens_details"]
    return CachedTurn(reply.usage["prompt_tokens"], details["cached_tokens"], details.get("pulled_tokens", 0))


def turn_line(turn: CachedTurn) -> str:
    """A turn in one line, as `examples/turns.py` prints it."""
    return f"{turn.prompt:4} prompt tokens, {turn.cached:4} cached, {turn.pulled:4} pulled"


def cache_report(turns: Sequence[CachedTurn]) -> StepReport:
    """The findings."""
    later = turns[1:]
    prompt, cached = sum(turn.prompt for turn in later), sum(turn.cached for turn in later)
    pulled = sum(turn.pulled for turn in later)
    share = numbers.share(cached / prompt) if prompt else numbers.MISSING
    return StepReport(
        f"From the second turn on {share} of the prompt tokens were not computed again; {pulled:,} of them were blocks "
        "that the decode instance had generated, pulled from the KV-cache pool.",
        ("cached from turn 2 on", share),
        (f"{cached:,} of {prompt:,} prompt tokens", f"{pulled:,} pulled from the pool"),
        problem="" if cached else "nothing was cached: each turn's prompt was computed again",
        tables=(_table(turns),),
        charts=(_chart(turns),),
    )


def _table(turns: Sequence[CachedTurn]) -> Table:
    heads = columns("turn", "prompt tokens", "computed", "cached", "of these pulled from the pool")
    rows = [[n, t.prompt, t.prompt - t.cached, t.cached, t.pulled] for n, t in enumerate(turns, 1)]
    return table_of(heads, rows)


def _chart(turns: Sequence[CachedTurn]) -> BarChart:
    bars = []
    for lane, turn in enumerate(turns):
        parts = (turn.cached - turn.pulled, turn.pulled, turn.prompt - turn.cached)
        start = 0
        for key, tokens in enumerate(parts):
            if tokens:
                bars.append(Bar(lane, start, start + tokens, key, f"{tokens:,} tokens", f"{tokens:,}"))
            start += tokens
    return BarChart(
        id="turns",
        title="Where the prompt's tokens came from",
        note="A block is 16 tokens: what does not fill one is computed.",
        x=Axis(unit="tokens", low=0.0),
        lanes=[f"turn {number}" for number in range(1, len(turns) + 1)],
        lane_px=_LANE_PX,
        keys=[
            Key(name="kept by the prefill instance", color="blue"),
            Key(name="pulled from the KV-cache pool", color="green"),
            Key(name="computed", color="orange"),
        ],
        bars=bars,
    )


STEP = Step(
    "cache",
    "Watch the cache",
    "Each turn's prompt holds the whole conversation so far. Cached tokens are not computed again. Those that are "
    "pulled come from the KV-cache pool: memory servers, which all instances reach and which outlive them.",
    ("python examples/turns.py",),
    run,
)
