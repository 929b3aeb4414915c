"""A page while it is put together: its sections, the charts that they want, and its navigation."""

from collections.abc import Sequence

from loadgen.report.chart import Chart
from loadgen.report.fragments import Html, element, figures, html, join, section


class Page:
    """Parts of a page, collected: body, the charts that its figures want, and where the navigation leads.

    Args:
        footnote: sentences at the end of the page, next to its generator's name.
    """

    def __init__(self, title: str, *, footnote: str = "") -> None:
        self.title = title
        self.footnote = footnote
        self.charts: list[Chart] = []
        self.navigation: list[tuple[str, str]] = []
        self.body: list[Html] = []

    def add(self, anchor: str, title: str, *content: object, short: str = "") -> None:
        """A section, unless it is empty; in the navigation by its title or `short`."""
        part = section(anchor, title, *content)
        if part:
            self.body.append(part)
            self.navigation.append((anchor, short or title))

    def draw(self, charts: Sequence[Chart], *, single: bool = False, three: bool = False) -> Html:
        """Places for charts, side by side if they fit; stores their data."""
        self.charts.extend(charts)
        return figures(charts, css="single" if single or len(charts) == 1 else "three" if three else "")


def tiles(parts: Sequence[Html]) -> Html:
    """The main figures, large; see `fragments.tile`."""
    return Html(f'<dl class="tiles">{join(parts)}</dl>') if parts else Html("")


def facts(pairs: Sequence[tuple[str, object]]) -> Html:
    """One line of names and values."""
    items = [
        Html(f"<span>{html(name)} <b>{html(value)}</b></span>") for name, value in pairs if value not in ("", None)
    ]
    return element("p", join(items), "facts")
