"""The palette of pages, reports, boards and plots: a colour has one meaning and one value in all of them.

Charts and style sheets use the names. Light values have a contrast of at least 4.5 on white, dark ones on `#191d20`;
only `grey` and `faint` are too faint for text.
"""

COLORS = {
    "blue": ("#2563c9", "#6ea8ff"),
    "orange": ("#b45309", "#f0a052"),
    "green": ("#157a4e", "#58c592"),
    "red": ("#c92a3a", "#ff7a85"),
    "violet": ("#7a4fc4", "#b594f2"),
    "grey": ("#7b838b", "#8f989f"),
}
"""By name: the value on a light and on a dark page."""
NEUTRALS = {
    "page": ("#f7f7f5", "#121517"),
    "card": ("#ffffff", "#191d20"),
    "ink": ("#1c2126", "#e3e6e8"),
    "soft": ("#5c656e", "#a3abb2"),
    "faint": ("#8a929a", "#7d868e"),
    "line": ("#e3e4e0", "#2b3135"),
    "grid": ("#ecede9", "#242a2e"),
    "code": ("#f0f0ec", "#22272b"),
    "red-back": ("#fdeeee", "#2e1a1c"),
}
"""Grounds, texts and lines, as `COLORS`: `page` and `card` are grounds; `ink` and `soft` are texts."""
POOLS = {"prefill": "blue", "decode": "violet", "aggregated": "violet", "kvcache": "green"}
"""Colours of the pools. Their names are colours, too."""


def variables(*, dark: bool) -> str:
    """All colours as declarations of CSS variables, one line."""
    values = [f"--{name}: {shades[dark]};" for name, shades in (COLORS | NEUTRALS).items()]
    return " ".join(values + [f"--{pool}: var(--{color});" for pool, color in POOLS.items()])


def with_colors(css: str) -> str:
    """A style sheet with `$light` and `$dark` replaced by the declarations."""
    return css.replace("$light", variables(dark=False)).replace("$dark", variables(dark=True))
