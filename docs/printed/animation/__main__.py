"""Records the animation's run, or draws it: `python -m docs.printed.animation record|draw`."""

import argparse
from pathlib import Path

import msgspec

from docs.printed.animation.draw import draw
from docs.printed.animation.story import Timeline
from tests.pages import ROOT

TIMELINE = Path(__file__).with_name("timeline.json")
PICTURE = ROOT / "docs" / "assets" / "animation.svg"


def main() -> None:
    """Write the requested file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "draw"))
    parser.add_argument("--at", type=float, metavar="SECONDS", help="draw one moment, to standard output")
    flags = parser.parse_args()
    if flags.what == "record":
        from docs.printed.animation.record import record

        TIMELINE.write_bytes(msgspec.json.format(msgspec.json.encode(record()), indent=0))
        return
    timeline = msgspec.json.decode(TIMELINE.read_bytes(), type=Timeline)
    if flags.at is not None:
        print(draw(timeline, flags.at))
    else:
        PICTURE.write_text(draw(timeline), encoding="utf-8")


if __name__ == "__main__":
    main()
