"""Turn the folder of a run into a trace file.

Bodies are read from `sent.jsonl`, times from `requests.jsonl`. All values that a replay reproduces are written so that
recording the replay gives the same bytes: times are those of the schedule (in a closed loop: when the slot was free),
think times the pauses that were planned, ids those of the workload or computed from the bodies alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from loadgen.errors import UsageError
from loadgen.plan import Conduct
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.recording.hashing import BlockHasher, RecordedPrompt, prompt_of
from loadgen.run_folder import read_bodies, read_records, read_result
from loadgen.trace import TraceForm, TraceHeader, TraceRecord, write_recorded, write_requests

DEFAULT_BLOCK_TOKENS = 16
"""Block of most servers' prefix caches."""
_BYTES_PER_TOKEN = 4.0
"""Mean of English text, used if no prompt's number of tokens is known."""
_COMPLETE = frozenset({RequestOutcome.OK, RequestOutcome.SHORT})


@dataclass(frozen=True)
class Recorded:
    """A run as a trace. `left_out`: requests that never left, malformed ones, and those without a saved body."""

    requests: int
    sessions: int
    left_out: int


@dataclass(frozen=True)
class _Sent:
    """One request that belongs into the trace; times in whole microseconds."""

    record: RequestRecord
    body: str
    prompt: RecordedPrompt | None
    session: int
    turn: int
    timestamp_us: int
    think_us: int
    waits_for: tuple[int, ...] = ()

    @property
    def known_tokens(self) -> int | None:
        """Tokens of the whole prompt: from the server, else as planned, which for a later turn is only a part."""
        if self.record.input_tokens is not None or self.turn:
            return self.record.input_tokens
        return self.record.planned_input_tokens


def record_trace(
    folder: Path, out: Path, *, form: TraceForm = TraceForm.LOADGEN, block_tokens: int = DEFAULT_BLOCK_TOKENS
) -> Recorded:
    """Write the trace of a run.

    Args:
        folder: of the run. form: in all formats but our own, later turns are placed at their real times, as whole
        milliseconds, and fields unknown to the format are lost. block_tokens: of `hash_ids`, where the workload had
        none of its own.
    Raises: UsageError if the folder is not that of a run with saved bodies, or holds no sent request;
        TraceFormatError if its files cannot be read; OutputError if the trace cannot be written.
    Effects: replaces `out`.
    """
    result, bodies = read_result(folder), read_bodies(folder)
    records = list(read_records(folder))
    sent = _sessions(records, bodies)
    if not sent:
        raise UsageError(f"{folder} contains no sent request to record")
    given = sorted({one.record.block_tokens for one in sent if one.record.hash_ids})
    header = TraceHeader(
        block_tokens=given[0] if len(given) == 1 else block_tokens,
        hash_ids="given" if len(given) == 1 else "computed",
        bytes_per_block=0 if len(given) == 1 else _bytes_per_block(sent, block_tokens),
        endpoint=urlsplit(result.endpoint).path,
        requests=len(sent),
    )
    requests = _requests(sent, header)
    if form is TraceForm.LOADGEN:
        write_recorded(out, header, requests)
    else:
        write_requests(out, form, _at_real_times(sent, requests), header.block_tokens)
    return Recorded(len(sent), sent[-1].session + 1, len(records) - len(sent))


def _sessions(records: Sequence[RequestRecord], bodies: dict[tuple[int, int], str]) -> list[_Sent]:
    """Requests sent, by session in order of their start, numbered without gaps."""
    kept = [
        record
        for record in records
        if record.started_s is not None
        and record.conduct != Conduct.MALFORMED
        and (record.index, record.turn) in bodies
    ]
    kept.sort(key=lambda record: (record.index, record.turn))
    conversations = [list(group) for _, group in groupby(kept, key=lambda record: record.index)]
    conversations.sort(key=lambda turns: (_microseconds(turns[0].intended_s), turns[0].index))
    return [
        sent
        for session, turns in enumerate(conversations)
        for sent in _turns(session, turns, [bodies[record.index, record.turn] for record in turns])
    ]


def _turns(session: int, turns: list[RequestRecord], bodies: list[str]) -> list[_Sent]:
    """The turns of one session. A pause counts from the end of the last turn that it waits for, as sent.

    Turns that were not sent are not in the trace; a turn that waits for one waits for the one in front of it instead.
    """
    places = {record.turn: place for place, record in enumerate(turns)}
    found: list[_Sent] = []
    timestamp_us = _microseconds(turns[0].intended_s)
    for turn, (record, body) in enumerate(zip(turns, bodies, strict=True)):
        known = [places[wait] for wait in record.waits_for if wait in places]
        waits_for = known or ([turn - 1] if turn else [])
        ends = [end_s for wait in waits_for if (end_s := turns[wait].ended_s) is not None]
        ended_s = max(ends, default=None)
        think_us = 0 if ended_s is None else max(0, _microseconds(record.intended_s - ended_s))
        timestamp_us = max((found[wait].timestamp_us for wait in waits_for), default=timestamp_us) + think_us
        after = tuple(waits_for) if record.waits_for else ()
        found.append(_Sent(record, body, prompt_of(body), session, turn, timestamp_us, think_us, after))
    return found


def _requests(sent: list[_Sent], header: TraceHeader) -> list[TraceRecord]:
    """The lines of the trace."""
    bytes_per_token = _bytes_per_token(sent)
    hasher = BlockHasher(header.block_tokens, header.bytes_per_block)
    return [
        TraceRecord(
            arrival_s=one.timestamp_us / 1e6,
            input_tokens=(tokens := _input_tokens(one, bytes_per_token)),
            output_tokens=_output_tokens(one.record),
            hash_ids=_hash_ids(one, tokens, None if header.hash_ids == "given" else hasher),
            session=one.session,
            follows=one.turn > 0,
            input_estimated=one.known_tokens is None and not isinstance(one.prompt, list),
            think_s=one.think_us / 1e6,
            waits_for=one.waits_for,
            tenant=one.record.tenant,
            conduct=one.record.conduct,
            body=one.body,
        )
        for one in sent
    ]


def _hash_ids(one: _Sent, tokens: int, hasher: BlockHasher | None) -> list[int]:
    """Ids of a prompt's blocks; without a hasher those of the workload. Effects: the hasher remembers them."""
    if hasher is None:
        return one.record.hash_ids
    return [] if one.prompt is None else hasher.hash_ids(one.prompt, tokens)


def _input_tokens(one: _Sent, bytes_per_token: float) -> int:
    """Tokens of the whole prompt, an estimate if not counted; at least 1, as a trace needs it."""
    if one.known_tokens is not None:
        return max(1, one.known_tokens)
    if isinstance(one.prompt, list):
        return max(1, len(one.prompt))
    return 1 if one.prompt is None else max(1, round(_bytes(one.prompt) / bytes_per_token))


def _output_tokens(record: RequestRecord) -> int:
    """Tokens of the response if it was complete, else those requested: the length of a cut response is meaningless."""
    answered, planned = record.output_tokens, record.planned_output_tokens
    if record.outcome in _COMPLETE and answered is not None:
        return answered
    return planned if planned is not None else answered or 0


def _bytes_per_token(sent: list[_Sent]) -> float:
    """Mean bytes per token over all prompts that are text and whose tokens are known."""
    known = [(_bytes(one.prompt), one.known_tokens) for one in sent if isinstance(one.prompt, str) and one.known_tokens]
    total = sum(tokens or 0 for _, tokens in known)
    return sum(n_bytes for n_bytes, _ in known) / total if total else _BYTES_PER_TOKEN


def _bytes_per_block(sent: list[_Sent], block_tokens: int) -> int:
    """Bytes of a block of text; 0 if there is no text."""
    if not any(isinstance(one.prompt, str) for one in sent):
        return 0
    return max(1, round(block_tokens * _bytes_per_token(sent)))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _at_real_times(sent: list[_Sent], requests: list[TraceRecord]) -> list[TraceRecord]:
    """Each request by itself, at the whole millisecond at which it really was due, in that order."""
    timed = [
        TraceRecord(
            arrival_s=max(0, round(one.record.intended_s * 1000)) / 1000,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            hash_ids=request.hash_ids,
        )
        for one, request in zip(sent, requests, strict=True)
    ]
    return sorted(timed, key=lambda request: request.arrival_s)


def _microseconds(time_s: float) -> int:
    """Whole microseconds; times before the start count as the start."""
    return max(0, round(time_s * 1e6))
