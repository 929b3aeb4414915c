"""Numbers as people read them: three significant digits, the unit that fits, and a dash for what is not known."""

import math

MISSING = "–"
_DIGITS = 3
_MINUTE_S = 60
_HOUR_S = 3600
_SHARE_DIGITS = 4
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def significant(value: float | None, digits: int = _DIGITS) -> str:
    """A number with so many significant digits; digits before the point are never cut: 1234.5 -> "1,234"."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    before = math.floor(math.log10(abs(float(f"{value:.{digits}g}")))) + 1
    return f"{value:,.{max(0, digits - before)}f}"


def duration(seconds: float | None) -> str:
    """A duration in the unit that fits: "84.0 µs", "312 ms", "1.24 s", "2 min 05 s", "3 h 20 min"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return "0 s"
    size = abs(seconds)
    if size >= 2 * _HOUR_S:
        return f"{round(seconds / _MINUTE_S) // 60} h {round(seconds / _MINUTE_S) % 60:02d} min"
    if size >= 2 * _MINUTE_S:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02d} s"
    factor, unit = next(((factor, unit) for factor, unit in _SCALES if size >= 0.9995 * factor), _SCALES[-1])
    return f"{significant(seconds / factor)} {unit}"


def clock(seconds: float | None) -> str:
    """A moment of a run: "12.5 s", "4:05", "1:02:03"."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if abs(seconds) < _MINUTE_S:
        return f"{significant(seconds)} s"
    minutes, rest = divmod(round(seconds), _MINUTE_S)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def limit(seconds: float) -> str:
    """A user's limit, without additional digits: "50 ms", "1.5 s"."""
    factor, unit = next(((factor, unit) for factor, unit in _SCALES if seconds >= 0.9995 * factor), _SCALES[-1])
    return f"{seconds / factor:.6g} {unit}"


def count(value: int | None) -> str:
    """A whole number with separators."""
    return MISSING if value is None else f"{value:,}"


def share(value: float | None, digits: int = 1) -> str:
    """A share as per cent; what is not exactly 0 or 1 is never rounded to it: 0.9996 -> "99.96 %"."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value in (0.0, 1.0):
        return f"{100 * value:g} %"
    for places in range(digits, max(digits, _SHARE_DIGITS) + 1):
        text = f"{100 * value:.{places}f}"
        if float(text) not in (0.0, 100.0):
            return f"{text} %"
    return "< 0.001 %" if value < 0.5 else "> 99.999 %"


def change(value: float | None) -> str:
    """A relative difference in signed per cent: 0.012 -> "+1.2 %"; a change that rounds to zero has no sign."""
    if value is None or math.isnan(value):
        return MISSING
    text = f"{100 * value:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text.replace("-", "−")


def size(nbytes: int | None) -> str:
    """Bytes in the binary unit that fits: "512 B", "1.50 KiB", "12.3 GiB"."""
    if nbytes is None:
        return MISSING
    steps = min(len(_BYTE_UNITS) - 1, max(0, abs(nbytes).bit_length() - 1) // 10)
    return f"{nbytes:,} B" if steps == 0 else f"{significant(nbytes / 1024**steps)} {_BYTE_UNITS[steps]}"


def fixed(value: float | None, digits: int) -> str:
    """A number with so many digits after the point, for figures of which a later digit matters: a perplexity."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def scientific(value: float | None, digits: int = 2) -> str:
    """A small number that no unit fits: 0.00123 -> "1.23e-03"."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}e}"


def quantity(value: float | None, unit: str) -> str:
    """A value of a metric in its unit: durations scaled, other values with the unit's name."""
    if unit == "s":
        return duration(value)
    text = significant(value)
    return text if text == MISSING or not unit else f"{text} {unit}"


def percentile_name(percentile: str | float) -> str:
    """ "99" -> "p99", 99.90 -> "p99.9"."""
    return f"p{float(percentile):g}"
