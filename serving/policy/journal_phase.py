"""Where a sequence is on its way, as the gateway's record of it knows."""

from enum import Enum


class JournalPhase(Enum):
    """Who has to act next."""

    ROUTING = "routing"
    PREFILLING = "prefilling"
    HANDED_OFF = "handed off"
    MOVING = "moving"
    DECODING = "decoding"
    DONE = "done"


AT_INSTANCE = (JournalPhase.PREFILLING, JournalPhase.MOVING, JournalPhase.DECODING)
