"""Traces as workloads: times, lengths, and prefixes that repeat as in the trace, also when scaled and clipped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, Turn
from loadgen.trace import Reading, open_trace
from loadgen.workload.calibrate import calibrate
from loadgen.workload.datasets import Fit, TraceWorkload
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import Words
from tests.loadgen.workload.counters import byte_level_bpe

_TO_16 = 1 / 32


def _write(path: Path, *requests: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return path


def _request(timestamp: float, tokens: int, *hash_ids: int, output: int = 320) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": list(hash_ids)}


def _read(workload: TraceWorkload, seed: int = 0) -> list[Conversation]:
    return list(workload.conversations(np.random.default_rng(seed)))


def _turns(workload: TraceWorkload) -> list[Turn]:
    return [conversation.turns[0] for conversation in _read(workload)]


def _tokens(bpe: LocalTokenizer, turn: Turn) -> list[int]:
    assert isinstance(turn.prompt, str)
    return bpe.ids(turn.prompt) or []


def test_times_lengths_and_block_sizes(tmp_path: Path, words: Words) -> None:
    path = _write(tmp_path / "trace", _request(0, 1024, 0, 1), _request(1500, 700, 0, 2, output=16))
    first, second = _read(TraceWorkload(open_trace(path), words))
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.5)
    assert [(turn.input_tokens, turn.output_tokens) for turn in (first.turns[0], second.turns[0])] == [
        (1024, 320),
        (700, 16),
    ]
    assert second.turns[0].hash_ids == [0, 2]
    assert second.turns[0].block_tokens == 512

    path = _write(tmp_path / "trace", _request(0, 1023, 0, 1), _request(0, 513, 0, 2), _request(0, 1024, 0, 3))
    assert [turn.input_tokens for turn in _turns(TraceWorkload(open_trace(path), words, Fit(_TO_16)))] == [31, 17, 32]

    path = _write(tmp_path / "trace", _request(0, 40, 0, 1, 2))
    [turn] = _turns(TraceWorkload(open_trace(path, Reading(block_tokens=16)), words))
    assert (turn.input_tokens, turn.block_tokens) == (40, 16)


def test_scaled_prompts_have_the_planned_tokens_and_share_whole_blocks(
    tmp_path: Path, words: Words, bpe: LocalTokenizer
) -> None:
    path = _write(tmp_path / "trace", _request(0, 1500, 4, 5, 6), _request(1, 2000, 4, 5, 7, 8))
    turns = _turns(TraceWorkload(open_trace(path), words, Fit(_TO_16)))
    assert [turn.input_tokens for turn in turns] == [32 + 15, 48 + 14]  # 476/32 = 14.9, 464/32 = 14.5
    assert [turn.block_tokens for turn in turns] == [16, 16]
    assert [turn.output_tokens for turn in turns] == [10, 10]
    first, second = (_tokens(bpe, turn) for turn in turns)
    assert [len(first), len(second)] == [turn.input_tokens for turn in turns]
    assert first[:32] == second[:32]
    assert first[32:46] != second[32:46]


_LINES = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 512)), min_size=2, max_size=6
)
_BPE = byte_level_bpe()
_WORDS = calibrate(_BPE)


@given(_LINES)
def test_as_many_blocks_repeat_as_in_the_trace(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[list[int], int]]
) -> None:
    """Ids of a chained hash: each names the path to it. The server's view (token blocks of 16) must count the same."""
    requests = [
        _request(0, (len(path) - 1) * 512 + last, *(_number(path[: depth + 1]) for depth in range(len(path))))
        for path, last in lines
    ]
    file = _write(tmp_path_factory.getbasetemp() / "chained", *requests)
    of_trace = [tuple(request["hash_ids"][: request["input_length"] // 512]) for request in requests]
    of_server = []
    for turn in _turns(TraceWorkload(open_trace(file), _WORDS, Fit(_TO_16))):
        tokens = _tokens(_BPE, turn)
        of_server.append(tuple(tuple(tokens[at : at + 16]) for at in range(0, len(tokens) - 15, 16)))
    assert _repeated(of_server) == _repeated(of_trace)


def _number(path: list[int]) -> int:
    return int("1" + "".join(map(str, path)), 10)


def _repeated(prompts: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Blocks whose whole prefix was seen before, and all blocks."""
    seen: set[tuple[Any, ...]] = set()
    repeated = 0
    for blocks in prompts:
        prefixes = {blocks[: depth + 1] for depth in range(len(blocks))}
        repeated += len(prefixes & seen)
        seen |= prefixes
    return repeated, sum(map(len, prompts))


def test_clipping_keeps_prefixes_and_claims_no_cut_block(tmp_path: Path, words: Words, bpe: LocalTokenizer) -> None:
    path = _write(tmp_path / "trace", _request(0, 2048, 0, 1, 2, 3), _request(0, 1024, 0, 1))
    workload = TraceWorkload(open_trace(path), words, Fit(_TO_16, max_model_tokens=50))
    long, short = _turns(workload)
    assert (long.input_tokens, long.hash_ids) == (32, [0, 1])  # 40 fit: two blocks
    assert _tokens(bpe, long) == _tokens(bpe, short)
    assert (long.asked_input_tokens, short.asked_input_tokens) == (64, None)

    path = _write(tmp_path / "trace", _request(0, 2048, 0, 1, 2, 3))
    [turn] = _turns(TraceWorkload(open_trace(path), words, Fit(_TO_16, max_model_tokens=20)))
    assert (turn.input_tokens, turn.hash_ids, turn.block_tokens) == (10, [], 0)
    assert len(_tokens(bpe, turn)) == 10


def test_text_depends_on_ids_alone_and_lengths_on_the_scale(tmp_path: Path, words: Words) -> None:
    path = _write(tmp_path / "trace", _request(0, 1024, 0, 1), _request(0, 700, 0))
    workload = TraceWorkload(open_trace(path), words, Fit(_TO_16))
    one, again, other = (_read(workload, seed) for seed in (1, 1, 2))
    assert one == again
    assert one[0] == other[0]
    assert one[1] != other[1]

    trace = open_trace(_write(tmp_path / "trace", _request(0, 1024, 0, 1)))
    with pytest.raises(UsageError, match="length-scale"):
        TraceWorkload(trace, words, Fit(length_scale=0.0005))


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", '{"timestamp": 0}', '{"timestamp": 0, "input_length": "x", "output_length": 1}',
        json.dumps(_request(-1, 512, 0)), json.dumps(_request(0, 0)), json.dumps(_request(0, 512, -1)),
        json.dumps(_request(0, 512, 2**64)), json.dumps(_request(0, 1500, 1)),
    ],
)  # fmt: skip
def test_a_line_that_is_no_request_is_named(tmp_path: Path, words: Words, line: str) -> None:
    path = tmp_path / "trace"
    path.write_text(json.dumps(_request(0, 512, 0)) + "\n\n" + line + "\n")
    conversations = TraceWorkload(open_trace(path), words).conversations(np.random.default_rng(0))
    next(conversations)  # lines are read as they are needed
    with pytest.raises(TraceFormatError, match=r"trace:3: "):
        next(conversations)


def test_sessions_are_conversations_of_whole_prompts(tmp_path: Path, words: Words) -> None:
    later = {"input_length": 1024, "output_length": 9, "hash_ids": [0, 1], "session_id": "a", "delay": 2500}
    first = _request(500, 512, 0) | {"session_id": "a"}
    path = _write(tmp_path / "trace", _request(0, 512, 8), first, _request(700, 512, 9), later)
    conversations = _read(TraceWorkload(open_trace(path), words))
    assert [(one.arrival_s, len(one.turns), one.history) for one in conversations] == [
        (0.0, 1, False),
        (0.5, 2, False),
        (0.7, 1, False),
    ]
    one, two = conversations[1].turns
    assert (two.think_s, two.input_tokens, two.output_tokens, two.hash_ids) == (2.5, 1024, 9, [0, 1])
    assert isinstance(one.prompt, str)
    assert isinstance(two.prompt, str)
    assert two.prompt.startswith(one.prompt)


_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_without_prefixes_prompts_have_the_scaled_tokens_and_differ(
    tmp_path: Path, words: Words, bpe: LocalTokenizer
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(_AZURE + "2023-11-16 18:15:46,320,32\n" * 2)
    turns = _turns(TraceWorkload(open_trace(path), words, Fit(0.1, max_model_tokens=20)))
    assert [len(_tokens(bpe, turn)) for turn in turns] == [17, 17]
    assert turns[0].prompt != turns[1].prompt
    assert [(turn.asked_input_tokens, turn.asked_output_tokens) for turn in turns] == [(32, None)] * 2


def test_what_the_reader_made_of_a_trace_is_told(tmp_path: Path, words: Words) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(_AZURE + "2023-11-16 18:15:46,320,0\n")
    [turn] = _turns(TraceWorkload(open_trace(path), words))
    assert (turn.output_tokens, turn.asked_output_tokens) == (1, 0)

    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n1700000000,320,1\n1700000001,320,1\n")
    fit = Fit()
    assert [one.arrival_s for one in _read(TraceWorkload(open_trace(path), words, fit))] == [0.0, 1.0]
    assert fit.tally.warnings() == ["times are seconds since 1970; they count from the first, 2023-11-14 22:13:20 UTC"]
