"""Durations as people read them in reasons."""


def duration_text(seconds: float) -> str:
    """A time in the unit that a person would use: `90 s`, `10 min`, `2 h`."""
    if seconds >= 7200 and seconds % 3600 == 0:
        return f"{seconds / 3600:.0f} h"
    if seconds >= 120 and seconds % 60 == 0:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s"
