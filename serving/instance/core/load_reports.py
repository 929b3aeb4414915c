"""Reports of an instance's load to its gateways, in addition to the regular ones.

A gateway knows what it has sent since an instance's latest report, but not what other gateways have sent. Until the
next report all of them see the same instances idle, and choose the same ones. So with several gateways an instance
reports at once when a sequence arrives, its prompt is computed, or it ends. `serving/group/README.md` has figures.
"""

from serving.values.news import News, Prefilled, Tokens, ends

LEAST_GAP_S = 0.01
"""Least time between a report and the next one that a change causes [s]: at most 100 messages a second to a gateway.
With 32 ranks and 4 gateways a gap of a hundredth of a prompt's time costs 10 % of TTFT, of a tenth 27 %."""


class LoadReports:
    """Times of one instance's reports."""

    __slots__ = ("_reported_at", "due")

    def __init__(self) -> None:
        self._reported_at = -LEAST_GAP_S
        self.due = False
        """Whether a change has not been reported yet."""

    def on_change(self, gateways: int, now: float) -> float | None:
        """A sequence has arrived, its prompt is computed, or it has ended.

        Args:
            gateways: linked to the instance.
        Returns: pause before the report [s]; None if one is due already, or no other gateway needs it.
        """
        if self.due or gateways < 2:
            return None
        self.due = True
        return max(0.0, self._reported_at + LEAST_GAP_S - now)

    def on_report(self, now: float) -> None:
        """A report is sent, for whatever reason."""
        self._reported_at, self.due = now, False


def report_age_s(period_s: float, gateways: int) -> float:
    """Greatest age of the report by which a gateway decides, if messages take no time [s].

    Args:
        period_s: of the regular reports [s]. gateways: linked to the instance.
    """
    return LEAST_GAP_S if gateways > 1 else period_s


def changes_load(news: News) -> bool:
    """Whether the instance has a prompt less to compute, or a sequence less, after this event."""
    if isinstance(news, Tokens):
        return news.cached_tokens is not None or news.finish_reason is not None
    return isinstance(news, Prefilled) or ends(news)
