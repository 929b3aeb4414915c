"""One sentence for a timeline: the largest part of the request's time, and its meaning."""

from collections.abc import Sequence

from serving.gateway.core import timeline as t

MEANINGS = {
    t.TOKENIZING: "reading, rendering and tokenizing the prompt; long prompts queue for the tokenizing threads",
    t.WAITING: "the gateway had no capacity for it: add instances, or raise [gateway] max_running_sequences",
    t.ROUTING: "the gateway was choosing an instance",
    t.RESUMING: "an instance was lost or refused it, and another had to take over",
    t.INSTANCE_QUEUE: "it was queued at its instance, for a place in a step or for KV blocks",
    t.STEP_WAIT: "it was ready, but steps of other sequences ran first",
    t.POOL_GET: "the prefix of its prompt was looked up in the KV-cache pool, and blocks were fetched from there",
    t.PREFILL: "its prompt was computed; a cached prefix would save most of that",
    t.CHECKSUMS: "checksums of its prompt's blocks were computed before the handoff",
    t.HANDOFF: "its KV blocks were transferred to the decode instance",
    t.DECODE: "each token takes a step, so longer outputs take longer",
    t.OTHER_STEPS: "its instance ran steps without it, such as prompts of others",
    t.BETWEEN: "its instance did not compute between steps: planning, or nothing to do",
    t.NETWORK: "outputs were in transit from the instance, or queued at the gateway",
    t.NO_NEWS: "its instance reported nothing until the end",
    t.OTHER_CHOICES: "it was done, but other choices of the request were not",
    t.WRITING: "the response was written to the client, which reads at its own pace",
}


def seconds_by_kind(parts: Sequence[t.TimePart]) -> dict[str, float]:
    """Seconds of a choice by kind of part, the largest first."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.kind] = sums.get(part.kind, 0.0) + part.seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def largest_cause(choices: Sequence[t.ChoiceLine], total_s: float) -> str:
    """The sentence about the choice that finished last."""
    if not choices or total_s <= 0.0:
        return ""
    slowest = min(choices, key=waited_for_others)
    kind, seconds = next(iter(seconds_by_kind(slowest.parts).items()), ("", 0.0))
    if not kind:
        return ""
    parts = [part for part in slowest.parts if part.kind == kind]
    predicted = sum(part.predicted_s for part in parts)
    beside = f"; real NPUs would have taken {_time(predicted)}" if predicted > 0.0 else ""
    where = " and ".join(sorted({part.host for part in parts if part.host})[:3])
    place = f" on {where}" if where else ""
    share = f"{100.0 * seconds / total_s:.0f} % of its {_time(total_s)}"
    return f"{kind}{place} took {_time(seconds)}, {share}: {MEANINGS.get(kind, kind)}{beside}."


def waited_for_others(choice: t.ChoiceLine) -> float:
    """Time from a choice's end to the end of the last choice [s]."""
    return sum(part.seconds for part in choice.parts if part.kind == t.OTHER_CHOICES)


def _time(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
