"""Service-level objectives: how they are written, and which requests kept them."""

import math
import re
from collections.abc import Mapping, Sequence

from loadgen.errors import UsageError
from loadgen.metrics.definitions import BY_NAME
from loadgen.metrics.intervals import wilson
from loadgen.record import FAILURES, SUCCESSES, RequestRecord
from loadgen.result import SloResult

_NAMES = {"ttft": "ttft", "ttfo": "ttfo", "tpot": "tpot", "itl": "itl", "e2e": "e2e", "e2el": "e2e", "ntpot": "ntpot"}
_VALUE = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(us|ms|s)?")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_slo(texts: Sequence[str]) -> dict[str, float]:
    """SLOs as people write them, in seconds.

    Args:
        texts: each `ttft=500ms,tpot=50ms` (a number without a unit is seconds), or vLLM's `ttft:500` (milliseconds).
            `itl` limits a request's largest gap.
    Returns: metric name -> limit [s].
    Raises: UsageError for unknown metrics, values that are no time above 0, or a metric given twice.
    """
    found: dict[str, float] = {}
    for part in (part for text in texts for part in text.split(",") if part.strip()):
        name, sign, value = re.fullmatch(r"\s*([^=:]*)([=:]?)(.*?)\s*", part, re.DOTALL).groups()  # type: ignore[union-attr] # matches anything
        matched = _VALUE.fullmatch(value)
        if name not in _NAMES or not sign or matched is None:
            raise UsageError(f"--slo {part.strip()!r}: write ttft=500ms,tpot=50ms; metrics: {', '.join(_NAMES)}")
        limit_s = float(matched[1]) * _SECONDS[matched[2] or ("ms" if sign == ":" else "s")]
        if not 0 < limit_s < math.inf:
            raise UsageError(f"--slo {part.strip()!r}: a limit must be above 0")
        if _NAMES[name] in found:
            raise UsageError(f"--slo gives {_NAMES[name]} twice")
        found[_NAMES[name]] = limit_s
    if not found:
        raise UsageError("--slo is empty; write ttft=500ms,tpot=50ms")
    return found


def evaluate(records: Sequence[RequestRecord], targets: Mapping[str, float]) -> SloResult:
    """Which requests were good: successful, and every SLO kept. Failures are counted and never good.

    A request without the metric (TPOT of one token, TTFT of a whole answer) cannot miss it; how many is told.
    """
    kept = dict.fromkeys(targets, 0)
    good = counted = untestable = 0
    for record in records:
        if record.outcome in FAILURES:
            counted += 1
        elif record.outcome in SUCCESSES:
            counted += 1
            values = {name: BY_NAME[name].values(record) for name in targets}
            within = {name: not len(found) or float(found.max()) <= targets[name] for name, found in values.items()}
            for name, fine in within.items():
                kept[name] += fine
            good += all(within.values())
            untestable += any(not len(found) for found in values.values())
    return SloResult(
        targets=dict(targets),
        good=good,
        counted=counted,
        attainment=good / counted if counted else 0.0,
        wilson95=wilson(good, counted),
        each={name: number / counted if counted else 0.0 for name, number in kept.items()},
        untestable=untestable,
    )
