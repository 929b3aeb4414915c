"""Phase of a sequence, as recorded by its gateway.

ROUTING ─prefill_routed─► PREFILLING ─handoff_ready─► HANDED_OFF ─decode_routed─► MOVING ─adopted─► DECODING
   ▲                          │  └────── tokens (one instance does both) ──────────────────────────────▲ │
   │                          │     HANDED_OFF ◄─ refused, target lost ─ MOVING                          │
   │                          │     HANDED_OFF ◄─ handoff_ready, the instance drains ─ DECODING          │
   └── lost, failed, refused, handoff failed, gap: resubmitted as prompt + output so far ◄───────────────┘
any ── last token, cancel, deadline, no attempt left, condemned ──► DONE
"""

from enum import Enum


class JournalPhase(Enum):
    """Phase, which determines the party that acts next."""

    ROUTING = "routing"
    PREFILLING = "prefilling"
    HANDED_OFF = "handed off"
    MOVING = "moving"
    DECODING = "decoding"
    DONE = "done"


AT_INSTANCE = (JournalPhase.PREFILLING, JournalPhase.MOVING, JournalPhase.DECODING)
