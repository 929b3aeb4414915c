"""A recorded run: text, owners of NPUs, token rates, events. Times in seconds."""

import msgspec

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
