"""A recorded run in the animation's terms: times from its first picture, lines of text, captions."""

import itertools
from dataclasses import dataclass

import msgspec

# A recorded run: text, owners of NPUs, token rates, events. Times in seconds.

NODE_NPUS = 8
"""NPUs of a node of the supernode, as their names count them: n1.npu0 is the ninth."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        question: sent at `asked_s`. pieces: of its response, as they arrived.
        npus: from a moment on, a letter for each NPU: p prefill, d decode, x of a dead instance, . idle.
        rates: tokens per second of all streams together, up to a moment.
        events: captions from a moment on; a text that starts with "$ " is a command.
        streams: concurrent streams in addition to the shown one.
    """

    question: str
    asked_s: float
    pieces: list[tuple[float, str]]
    npus: list[tuple[float, str]]
    rates: list[tuple[float, float]]
    events: list[tuple[float, str]]
    streams: int

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(text for _, text in self.pieces)


def npu_letters(status: dict[str, object], count: int) -> str:
    """Owners of all NPUs by `GET /cluster`."""
    letters = ["."] * count
    for pool in status["pools"]:  # type: ignore[attr-defined]
        for replica in pool["replicas"]:
            lost = replica["state"] in ("dead", "frozen")
            for npu in replica["npus"]:
                node, _, number = npu.removeprefix("n").partition(".npu")
                place = int(node) * NODE_NPUS + int(number)
                if letters[place] in ".x":  # a replacement may already have a dead instance's NPUs
                    letters[place] = "x" if lost else pool["name"][0]
    return "".join(letters)


LEAD_S = 0.8
"""Shown before the question."""
HOLD_S = 2.2
"""Shown after the last thing that happens."""
COLUMNS = 62
GAP_S = 0.3
"""Longest time before the kill at which the pause may start."""


@dataclass(frozen=True, slots=True)
class Story:
    """Contents of the animation. Times count from the first picture [s].

    Args:
        lines: first and last position of each line in the response text. counts: characters shown, from each moment on.
        npus: letters by moment. streams: concurrent ones. rates: tokens/s by moment. captions: each from its moment.
    """

    end_s: float
    asked_s: float
    killed_s: float
    resumed_s: float
    text: str
    lines: list[tuple[int, int]]
    counts: list[tuple[float, int]]
    npus: list[tuple[float, str]]
    streams: int
    rates: list[tuple[float, float]]
    captions: list[tuple[float, str]]


def story_of(timeline: Timeline) -> Story:
    """Derive the story from a timeline."""
    start = timeline.asked_s - LEAD_S
    kill_at, kill = next(event for event in timeline.events if event[1].startswith("$ kill"))
    scale_at, scale = next(event for event in timeline.events if "scale" in event[1])
    times = [at for at, _ in timeline.pieces if at > kill_at - GAP_S]
    _, resumed = max(itertools.pairwise(times), key=lambda gap: gap[1] - gap[0])
    grown = next(at for at, letters in timeline.npus if at > scale_at and letters.count("d") == 8)
    counts, count = [(0.0, 0)], 0
    for at, piece in timeline.pieces:
        count += len(piece)
        counts.append((at - start, count))
    npus = [(max(0.0, at - start), letters) for at, letters in timeline.npus]
    npus = [step for place, step in enumerate(npus) if place + 1 == len(npus) or npus[place + 1][0] > 0]
    replaced = next(at for at, letters in timeline.npus if at > kill_at + GAP_S and "d" in letters)
    by_whom = "all go on" if replaced <= resumed else "prefill instances decode"
    captions = sorted(
        [
            (kill_at - start, kill),
            (kill_at - start + 0.4, "the only decode instance is dead"),
            (resumed - start, f"after {resumed - kill_at:.1f} s {by_whom}:"),
            (resumed - start + 0.6, "each token is what it would have been"),
            (replaced - start, f"replaced after {replaced - kill_at:.1f} s"),
            (scale_at - start, scale),
            (grown - start, f"two serve after {grown - scale_at:.1f} s"),
        ]
    )
    end = max(grown, timeline.pieces[-1][0]) - start + HOLD_S
    rates = [(at - start, rate) for at, rate in timeline.rates if 0 <= at - start <= end]
    text = timeline.text
    return Story(
        end, LEAD_S, kill_at - start, resumed - start, text, wrapped(text, COLUMNS), counts, npus, timeline.streams + 1,
        rates,
        captions,
    )  # fmt: skip


def wrapped(text: str, columns: int) -> list[tuple[int, int]]:
    """First and last position (exclusive) of each line, broken at blanks and line breaks."""
    lines, start = [], 0
    while start < len(text):
        break_at = text.find("\n", start)
        end = len(text) if break_at < 0 else break_at
        if end - start > columns:
            blank = text.rfind(" ", start, start + columns + 1)
            end = blank if blank > start else start + columns
        lines.append((start, end))
        start = end + (end < len(text) and text[end] in " \n")
    return lines
