"""Service-level objectives: their syntax, and the requests that met them."""

import re
from array import array
from collections.abc import Mapping, Sequence

import msgspec

from loadgen.errors import UsageError
from loadgen.metrics.definitions import BY_NAME
from loadgen.metrics.distribution import wilson
from loadgen.plan import Conduct
from loadgen.quantities import parse_duration
from loadgen.record import FAILURES, NOT_COUNTED, SUCCESSES, RequestRecord
from loadgen.result import SloResult

_NAMES = {"ttft": "ttft", "ttfo": "ttfo", "tpot": "tpot", "itl": "itl", "e2e": "e2e", "e2el": "e2e", "ntpot": "ntpot"}
_LEAVING = frozenset({Conduct.DISCONNECT, Conduct.TIMEOUT, Conduct.MALFORMED})
_ANY_NUMBER = 2**31 - 1
"""Output tokens of a cut request: their number is unknown, so time per token is no reason to call it slow."""


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
        if name not in _NAMES or not sign:
            raise UsageError(f"--slo {part.strip()!r}: write ttft=500ms,tpot=50ms; metrics: {', '.join(_NAMES)}")
        try:
            limit_s = parse_duration(value, plain="ms" if sign == ":" else "s")
        except ValueError as error:
            raise UsageError(f"--slo {part.strip()!r}: {error}") from None
        if not limit_s:
            raise UsageError(f"--slo {part.strip()!r}: a limit must be above 0")
        if _NAMES[name] in found:
            raise UsageError(f"--slo gives {_NAMES[name]} twice")
        found[_NAMES[name]] = limit_s
    if not found:
        raise UsageError("--slo is empty; write ttft=500ms,tpot=50ms")
    return found


def evaluate(records: Sequence[RequestRecord], targets: Mapping[str, float]) -> SloResult:
    """Which requests were good: successful, and every SLO met. Failures are counted and never good.

    A request without the metric (TPOT of one token, TTFT of a whole response) cannot miss it; their number is reported.
    A request cut by the end of the run is counted if it had missed an SLO by then: leaving out those that waited
    longest would make an overloaded server look good.
    """
    kept = dict.fromkeys(targets, 0)
    good = counted = untestable = 0
    for record in records:
        if record.outcome in FAILURES:
            counted += 1
        elif record.outcome in SUCCESSES:
            counted += 1
            within = _within(record, targets)
            for name, fine in within.items():
                kept[name] += fine is not False
            good += all(fine is not False for fine in within.values())
            untestable += any(fine is None for fine in within.values())
        elif record.outcome in NOT_COUNTED and record.ended_s is not None and record.conduct not in _LEAVING:
            within = _within(_at_best(record, record.ended_s), targets)
            if any(fine is False for fine in within.values()):
                counted += 1
                for name, fine in within.items():
                    kept[name] += fine is not False
    return SloResult(
        targets=dict(targets),
        good=good,
        counted=counted,
        attainment=good / counted if counted else 0.0,
        wilson95=wilson(good, counted),
        each={name: number / counted if counted else 0.0 for name, number in kept.items()},
        untestable=untestable,
    )


def _within(record: RequestRecord, targets: Mapping[str, float]) -> dict[str, bool | None]:
    """Metric -> whether its largest value kept the limit; None where the request has none."""
    values = {name: BY_NAME[name].values(record) for name in targets}
    return {name: float(found.max()) <= targets[name] if len(found) else None for name, found in values.items()}


def _at_best(record: RequestRecord, cut_s: float) -> RequestRecord:
    """A request that was cut, as if all missing data had arrived at that moment."""
    tokens = _ANY_NUMBER if record.planned_output_tokens is None else record.planned_output_tokens
    return msgspec.structs.replace(
        record,
        started_s=cut_s if record.started_s is None else record.started_s,
        chunk_times=record.chunk_times + array("d", [cut_s]).tobytes(),
        chunk_tokens=b"",
        first_answer_s=cut_s if record.first_answer_s is None else record.first_answer_s,
        output_tokens=tokens,
    )
