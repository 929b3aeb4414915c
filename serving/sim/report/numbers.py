"""Numbers as people read them: three significant digits, a unit that fits, and a dash for what is not known."""

import math

from hardware.units import format_bytes, format_seconds

MISSING = "–"
_MINUTE_S = 60
_HOUR_S = 3600
_EXACT_SHARES = (0.0, 1.0)


def figure(value: float) -> str:
    """Three significant digits; those before the point are never cut: 1234.5 -> "1,234"."""
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{max(0, 2 - size)}f}"


def duration(seconds: float) -> str:
    """A latency: "84 µs", "31.25 ms", "1.2 s"."""
    return format_seconds(seconds).replace("us", "µs") if math.isfinite(seconds) else MISSING


def clock(seconds: float) -> str:
    """A long time or a moment: "12.5 s", "4:05", "1:02:03"."""
    if not math.isfinite(seconds):
        return MISSING
    if abs(seconds) < _MINUTE_S:
        return f"{figure(seconds)} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, _MINUTE_S)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if whole >= _HOUR_S else f"{minutes}:{rest:02d}"


def share(value: float) -> str:
    """A share in per cent; what is not exactly all or nothing is not rounded to it: 0.9996 -> "99.96 %"."""
    if not math.isfinite(value):
        return MISSING
    if value in _EXACT_SHARES:
        return f"{100 * value:.0f} %"
    for digits in (1, 2, 3):
        text = f"{100 * value:.{digits}f}"
        if float(text) not in (0.0, 100.0):
            return f"{text} %"
    return "< 0.001 %" if value < 0.5 else "> 99.999 %"


def error(value: float) -> str:
    """A relative error in signed per cent: 0.012 -> "+1.2 %"; what rounds to nothing has no sign."""
    if math.isnan(value):
        return MISSING
    text = f"{100 * value:+.1f} %"
    return "0.0 %" if text in ("+0.0 %", "-0.0 %") else text.replace("-", "−")


def size(nbytes: int) -> str:
    """Bytes in binary units."""
    return format_bytes(nbytes)


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"
