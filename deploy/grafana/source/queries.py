"""PromQL of the boards. Several gateways may show the same series: the largest of each counts, once."""

WINDOW = "$__rate_interval"
"""Grafana's interval for the current zoom; a test replaces it with a time."""


def value(name: str, *by: str, each: str = "engine") -> str:
    """A gauge, summed by labels; grouped by `each` as well."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) ({name}))"


def rate(name: str, *by: str, each: str = "engine") -> str:
    """A counter's rate per second, summed by labels."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) (rate({name}[{WINDOW}])))"


def increase(name: str, *by: str, each: str = "engine", window: str = "1h") -> str:
    """Growth of a counter within a time, summed by labels."""
    return f"sum by ({', '.join(by)}) (max by ({_labels(each, by)}) (increase({name}[{window}])))"


def quantile(share: float, histogram: str, *by: str, each: str = "engine", selector: str = "") -> str:
    """A quantile of a histogram, by labels."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket{selector}', *by, 'le', each=each)})"


def mean(histogram: str, *by: str, each: str = "engine") -> str:
    """A histogram's mean, by labels."""
    return f"{rate(f'{histogram}_sum', *by, each=each)} / {rate(f'{histogram}_count', *by, each=each)}"


def _labels(each: str, by: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys((*each.split(), *by)))
