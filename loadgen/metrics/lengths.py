"""Requested and sent lengths.

A prompt or a response is changed if the model cannot take it whole, or if it would have no token. A run
with such changes measures another load than its flags describe, so the result holds both lengths.
"""

from collections.abc import Sequence
from typing import NamedTuple

from loadgen.record import RequestRecord
from loadgen.result import LengthStatistics


class _Pair(NamedTuple):
    """One prompt or response. `sent`: None if unknown. `change`: below 0 if shortened, above if raised."""

    asked: int
    sent: int | None
    change: int


def lengths(records: Sequence[RequestRecord]) -> dict[str, LengthStatistics]:
    """Both sides of prompts ("input") and responses ("output"); without a side whose lengths are unknown."""
    sides = {"input": _inputs(records), "output": _outputs(records)}
    return {name: _lengths(pairs) for name, pairs in sides.items() if pairs}


def length_cautions(records: Sequence[RequestRecord]) -> list[str]:
    """Cautions about lengths that were changed, one sentence each."""
    found = []
    for name, pairs in (("prompts", _inputs(records)), ("answers", _outputs(records))):
        shorter = [pair for pair in pairs if pair.change < 0]
        longer = [pair for pair in pairs if pair.change > 0]
        if shorter:
            found.append(
                f"{len(shorter)} of {len(records)} {name} were shortened to the model's longest length "
                f"({_means(shorter)}); request fewer tokens, or scale the whole data set with --length-scale"
            )
        if longer:
            found.append(
                f"{len(longer)} of {len(records)} {name} were raised to the least that can be sent ({_means(longer)})"
            )
    cut = [record.turns_left_out for record in records if record.turns_left_out]
    if cut:
        found.append(
            f"{sum(cut)} turns of {len(cut)} conversations were left out: behind their history they would not have "
            "fitted the model"
        )
    return found


def _inputs(records: Sequence[RequestRecord]) -> list[_Pair]:
    """Prompts. The length of an uncounted one is known only if it was changed; it is the server's then."""
    pairs = []
    for record in records:
        asked, sent = record.asked_input_tokens, record.planned_input_tokens
        if sent is not None:
            pairs.append(_pair(asked, sent))
        elif asked is not None:
            pairs.append(_Pair(asked, record.input_tokens, -1 if asked > 1 else 1))
    return pairs


def _outputs(records: Sequence[RequestRecord]) -> list[_Pair]:
    """Responses: the limits in the requests."""
    return [
        _pair(record.asked_output_tokens, record.planned_output_tokens)
        for record in records
        if record.planned_output_tokens is not None
    ]


def _pair(asked: int | None, sent: int) -> _Pair:
    return _Pair(sent, sent, 0) if asked is None else _Pair(asked, sent, sent - asked)


def _lengths(pairs: Sequence[_Pair]) -> LengthStatistics:
    asked = [pair.asked for pair in pairs]
    sent = [pair.sent for pair in pairs if pair.sent is not None]
    return LengthStatistics(
        requests=len(pairs),
        shortened=sum(pair.change < 0 for pair in pairs),
        lengthened=sum(pair.change > 0 for pair in pairs),
        asked_mean=sum(asked) / len(asked),
        asked_max=max(asked),
        sent_mean=sum(sent) / len(sent) if sent else None,
        sent_max=max(sent, default=None),
    )


def _means(pairs: Sequence[_Pair]) -> str:
    found = _lengths(pairs)
    sent = "an unknown number" if found.sent_mean is None else f"{found.sent_mean:,.1f}"
    return f"on average {found.asked_mean:,.1f} tokens asked for, {sent} sent"
