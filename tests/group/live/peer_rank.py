"""A rank in a separate process, whose slots others read: `python -m tests.group.live.peer_rank SEGMENT`.

Prints its offer, then reads lines: a number damages that slot's record; end of input ends it.
"""

import sys
from pathlib import Path

import msgspec

from serving.model.slots.expert_slots import fill_all, make_slots
from tests.model.slots.experts import MadeExperts


def main() -> None:
    """Run two slots in one layer, with experts 4 and 5. Effects: as in the module's text."""
    slots = make_slots("copied", MadeExperts(1), 2, Path(sys.argv[1]))
    fill_all(slots, [[4, 5]])
    print(msgspec.json.encode(slots.offer).decode(), flush=True)
    for line in sys.stdin:
        slots.record(int(line))[-1000] ^= 1  # type: ignore[attr-defined] # copied ones have records
        print(flush=True)
    slots.close()


if __name__ == "__main__":
    main()
