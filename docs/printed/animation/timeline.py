"""A recorded run: what was said, who had which NPU, how fast tokens came, what happened. Times in seconds."""

import msgspec

NODE_NPUS = 8
"""NPUs of a node of the supernode, as their names count them: n1.npu0 is the ninth."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Args:
        question: asked at `asked_s`. pieces: of its answer, as they came.
        npus: from a moment on, a letter for each NPU: p prefill, d decode, x of a dead instance, . idle.
        rates: tokens per second of all streams together, up to a moment.
        events: captions from a moment on; a text that begins with "$ " is a command.
        streams: that run besides the one that is shown.
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
    """Owners of all NPUs by what `GET /cluster` says."""
    letters = ["."] * count
    for pool in status["pools"]:  # type: ignore[attr-defined]
        for replica in pool["replicas"]:
            lost = replica["state"] in ("dead", "frozen")
            for npu in replica["npus"]:
                node, _, number = npu.removeprefix("n").partition(".npu")
                place = int(node) * NODE_NPUS + int(number)
                if letters[place] in ".x":  # a replacement may have a dead one's NPUs already
                    letters[place] = "x" if lost else pool["name"][0]
    return "".join(letters)
