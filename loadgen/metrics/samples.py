"""Starts of a few prompts and their responses, to show what was sent."""

from collections.abc import Sequence

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.recording.hashing import prompt_of
from loadgen.result import TextSample

SAMPLES = 3
"""Conversations from whose first turn a sample is taken."""
MOST_CHARS = 240
_MOST_IDS = 24


def samples(records: Sequence[RequestRecord]) -> list[TextSample]:
    """Samples from the first measured requests that kept both texts and succeeded."""
    kept = sorted(
        (one for one in records if not one.warmup and not one.turn and one.outcome in SUCCESSES), key=lambda r: r.index
    )
    found = []
    for record in kept:
        if record.body is None or record.text is None:
            continue
        prompt = prompt_of(record.body.decode("utf-8", errors="replace"))
        text = "" if prompt is None else prompt if isinstance(prompt, str) else _ids(prompt)
        found.append(
            TextSample(
                index=record.index,
                prompt=_beginning(text),
                answer=_beginning(record.text),
                input_tokens=record.input_tokens,
                output_tokens=record.output_tokens,
            )
        )
        if len(found) == SAMPLES:
            break
    return found


def _ids(prompt: Sequence[int]) -> str:
    return f"token ids {' '.join(map(str, prompt[:_MOST_IDS]))}{' …' if len(prompt) > _MOST_IDS else ''}"


def _beginning(text: str) -> str:
    """The first characters, escaped so that any file can hold them."""
    short = text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
    return short.encode("utf-8", errors="replace").decode()
