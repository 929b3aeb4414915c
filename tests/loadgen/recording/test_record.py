"""From a run to a trace and back: the same requests at the same times, and the same bytes when recorded again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.arrivals import ReplayedArrivals, Steady
from loadgen.driver.fleet import Fleet
from loadgen.driver.messages import DriveSettings
from loadgen.endpoint import Endpoint
from loadgen.errors import OutputError, TraceFormatError, UsageError
from loadgen.plan import Conversation, LoadJob
from loadgen.recording import record_trace
from loadgen.recording.hashing import BlockHasher, prompt_of
from loadgen.result import Generator, RunResult, Throughput
from loadgen.run_folder import RunFolder
from loadgen.selftest.ceiling import start_blast_server
from loadgen.trace import Reading, RecordedTrace, TraceForm, open_trace
from loadgen.workload.datasets import Fit, TraceWorkload
from loadgen.workload.distributions import Fixed, Uniform
from loadgen.workload.lengths import Lengths
from loadgen.workload.plan_jobs import plan_jobs
from loadgen.workload.ports import Workload
from loadgen.workload.sessions import Sessions
from loadgen.workload.shared_prefix import SharedPrefix
from loadgen.workload.source import RandomPrompts
from loadgen.workload.words import PromptKind, Words, ordinary_ids
from tests.cases.traces import AGENTS, written
from tests.loadgen.recording.runs import CHAT, COMPLETIONS, edit, run

_SHORT = Lengths(Uniform(5, 60))


def _chat(words: Words) -> Workload:
    """Several turns, tenants, think times."""
    tenants = SharedPrefix(words, _SHORT, tenants=3, system_prompt_tokens=40)
    return Sessions(tenants, _SHORT, turns=Lengths(Uniform(1, 4)), think_s=Uniform(0, 3))


def _ids(words: Words) -> Workload:
    return Sessions(RandomPrompts(Words(words.vocabulary, ordinary_ids(9000), PromptKind.IDS), _SHORT, 40), _SHORT)


def _random(words: Words) -> Workload:
    return Sessions(RandomPrompts(words, _SHORT, 40), _SHORT)


def _estimated(words: Words) -> Workload:
    return _random(Words(words.vocabulary, tokens_per_word=1.3))


def _mooncake(words: Words, path: Path) -> Workload:
    lines = [
        {
            "timestamp": 7 * number,
            "input_length": 1100,
            "output_length": 64,
            "hash_ids": [0, number % 4 + 1, number + 9],
        }
        for number in range(20)
    ]
    (path / "mooncake").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TraceWorkload(open_trace(path / "mooncake"), words, Fit(1 / 32))


def _agents(words: Words, path: Path) -> Workload:
    """Branches that join."""
    return TraceWorkload(open_trace(written(path, AGENTS, "agents")), words)


def _replayed(trace: Path) -> list[LoadJob]:
    return list(plan_jobs(TraceWorkload(open_trace(trace)), seed=9, arrivals=ReplayedArrivals()))


def _lines(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("kind", ["random", "estimated", "ids", "chat", "sessions", "closed", "mooncake", "agents"])
@pytest.mark.parametrize("usage", [True, False])
def test_a_replay_recorded_again_is_the_same_file(tmp_path: Path, words: Words, kind: str, usage: bool) -> None:
    make = {"estimated": _estimated, "ids": _ids, "chat": _chat, "sessions": _chat, "closed": _chat}
    traces = {"mooncake": _mooncake, "agents": _agents}
    workload = traces[kind](words, tmp_path) if kind in traces else make.get(kind, _random)(words)
    endpoint = CHAT if kind == "chat" else COMPLETIONS
    arrivals = None if kind == "closed" else ReplayedArrivals() if kind in traces else Steady(5.0)
    jobs = plan_jobs(workload, seed=3, arrivals=arrivals, count=20, warmups=2)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    recorded = record_trace(run(tmp_path / "run", jobs, endpoint=endpoint, usage=usage), first)
    again = run(tmp_path / "again", _replayed(first), endpoint=endpoint, usage=usage, seed=77)
    assert record_trace(again, second) == recorded
    assert second.read_bytes() == first.read_bytes()
    assert (recorded.sessions, recorded.left_out) == ({"mooncake": 20, "agents": 2}.get(kind, 22), 0)
    assert any("waits_for" in line for line in _lines(first)) == (kind == "agents")
    sent, resent = (
        {(line["index"], line["turn"]): line["body"] for line in _lines(folder / "sent.jsonl")}
        for folder in (tmp_path / "run", again)
    )
    assert sorted(sent.values()) == sorted(resent.values())


def _one(tmp_path: Path, words: Words, endpoint: Endpoint = COMPLETIONS, **changes: object) -> Path:
    """The folder of a run of three requests, the first of them changed."""
    folder = run(tmp_path / "run", plan_jobs(_random(words), seed=1, arrivals=Steady(2.0), count=3), endpoint=endpoint)
    edit(folder, **changes)
    return folder


def test_what_stands_in_a_line(tmp_path: Path, words: Words) -> None:
    folder = _one(tmp_path, words, intended_s=0.1234567, started_s=0.2, input_tokens=33, output_tokens=7)
    record_trace(folder, tmp_path / "t")
    header, line, *_ = _lines(tmp_path / "t")
    assert isinstance(open_trace(tmp_path / "t"), RecordedTrace)
    assert (header["requests"], header["endpoint"], header["hash_ids"]) == (3, "/v1/completions", "computed")
    assert (line["timestamp"], line["input_length"], line["output_length"]) == (123.457, 33, 7)
    assert len(line["hash_ids"]) == 3
    assert json.loads(line["body"])["model"] == "m"


def test_shared_beginnings_have_shared_ids(tmp_path: Path, words: Words) -> None:
    record_trace(_one(tmp_path, words), tmp_path / "t", block_tokens=8)
    first, second, third = (line["hash_ids"] for line in _lines(tmp_path / "t")[1:])
    assert first[:3] == second[:3] == third[:3] == [0, 1, 2]  # prompts share their first 40 tokens
    assert len({first[-1], second[-1], third[-1]}) == 3


def test_a_cut_answer_counts_as_what_was_asked_for(tmp_path: Path, words: Words) -> None:
    folder = _one(tmp_path, words, outcome="cancelled", conduct="disconnect", output_tokens=1, planned_output_tokens=50)
    record_trace(folder, tmp_path / "t")
    line = _lines(tmp_path / "t")[1]
    assert (line["output_length"], line["conduct"]) == (50, "disconnect")
    edit(folder, planned_output_tokens=None)
    record_trace(folder, tmp_path / "t")
    assert _lines(tmp_path / "t")[1]["output_length"] == 1


def test_lengths_that_nobody_counted_are_estimated_and_say_so(tmp_path: Path, words: Words) -> None:
    record_trace(_one(tmp_path, words, input_tokens=None, planned_input_tokens=None), tmp_path / "t")
    _, line, other, _ = _lines(tmp_path / "t")
    assert line["input_length_estimated"] is True
    assert "input_length_estimated" not in other
    exact = len(json.loads(line["body"])["prompt"].split())
    assert line["input_length"] == pytest.approx(exact, rel=0.2)

    (tmp_path / "odd").mkdir()
    folder = _one(tmp_path / "odd", words, input_tokens=None, planned_input_tokens=None)
    sent = (folder / "sent.jsonl").read_text().splitlines()
    sent[0] = json.dumps({"index": 0, "turn": 0, "body": '{"odd": 1}'})
    (folder / "sent.jsonl").write_text("\n".join(sent) + "\n")
    record_trace(folder, tmp_path / "t")
    line = _lines(tmp_path / "t")[1]
    assert (line["input_length"], line["hash_ids"]) == (1, [])


@pytest.mark.parametrize("change", [{"started_s": None}, {"conduct": "malformed"}, {"index": 99}])
def test_requests_that_cannot_be_replayed_are_left_out(tmp_path: Path, words: Words, change: dict[str, Any]) -> None:
    recorded = record_trace(_one(tmp_path, words, **change), tmp_path / "t")
    assert (recorded.requests, recorded.sessions, recorded.left_out) == (2, 2, 1)
    assert [line["session"] for line in _lines(tmp_path / "t")[1:]] == [0, 1]


def test_the_form_of_mooncake(tmp_path: Path, words: Words) -> None:
    jobs = plan_jobs(_chat(words), seed=3, arrivals=Steady(5.0), count=10)
    record_trace(run(tmp_path / "run", jobs, endpoint=CHAT), tmp_path / "t", form=TraceForm.MOONCAKE)
    lines = _lines(tmp_path / "t")
    assert all(set(line) == {"timestamp", "input_length", "output_length", "hash_ids"} for line in lines)
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times)
    assert all(isinstance(time, int) for time in times)
    records = _lines(tmp_path / "run" / "requests.jsonl")
    assert times == sorted(round(record["intended_s"] * 1000) for record in records)  # real times of later turns, too
    workload = TraceWorkload(open_trace(tmp_path / "t", Reading(block_tokens=16)), words)
    conversations = list(workload.conversations(np.random.default_rng(0)))
    assert len(conversations) == len(lines)


def test_a_pause_is_that_of_the_plan(tmp_path: Path, words: Words) -> None:
    workload = Sessions(RandomPrompts(words, _SHORT), _SHORT, turns=Lengths(Fixed(3)), think_s=Fixed(1.25))
    record_trace(run(tmp_path / "run", plan_jobs(workload, seed=1, arrivals=Steady(5.0), count=1)), tmp_path / "t")
    _, first, *later = _lines(tmp_path / "t")
    assert [line["think_ms"] for line in later] == [1250, 1250]
    assert [line["timestamp"] for line in later] == pytest.approx(
        [first["timestamp"] + 1250, first["timestamp"] + 2500]
    )


def test_a_replay_keeps_times_bodies_and_sessions(tmp_path: Path, words: Words) -> None:
    jobs = list(plan_jobs(_chat(words), seed=3, arrivals=Steady(5.0), count=10))
    record_trace(run(tmp_path / "run", jobs, endpoint=CHAT), tmp_path / "t")
    replayed = _replayed(tmp_path / "t")
    assert [job.due_s for job in replayed] == pytest.approx([job.due_s for job in jobs], abs=6e-7)
    assert [len(job.conversation.turns) for job in replayed] == [len(job.conversation.turns) for job in jobs]
    assert [job.conversation.tenant for job in replayed] == [job.conversation.tenant for job in jobs]
    assert not any(job.conversation.history for job in replayed)


def _conversation(workload: Workload) -> Conversation:
    return next(workload.conversations(np.random.default_rng(0)))


def test_another_model_may_be_named(tmp_path: Path, words: Words) -> None:
    record_trace(_one(tmp_path, words), tmp_path / "t")
    trace = open_trace(tmp_path / "t")
    exact, renamed = (_conversation(TraceWorkload(trace, model=name)).turns[0].body for name in (None, "other"))
    assert exact
    assert renamed
    assert json.loads(renamed) == json.loads(exact) | {"model": "other"}
    assert list(json.loads(renamed)) == list(json.loads(exact))
    text = (tmp_path / "t").read_text().replace('"body": "{', '"body": "[')
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceFormatError, match="no JSON object"):
        _conversation(TraceWorkload(open_trace(tmp_path / "t"), model="other"))


def test_lines_without_a_body_get_prompts_from_their_ids(tmp_path: Path, words: Words) -> None:
    jobs = plan_jobs(_mooncake(words, tmp_path), seed=1, arrivals=ReplayedArrivals())
    record_trace(run(tmp_path / "run", jobs, usage=False), tmp_path / "t")
    exact = _conversation(TraceWorkload(open_trace(tmp_path / "t"))).turns[0]
    lines = _lines(tmp_path / "t")
    sent = json.loads(lines[1].pop("body"))["prompt"]
    (tmp_path / "t").write_text("".join(json.dumps(line) + "\n" for line in lines))
    turn = _conversation(TraceWorkload(open_trace(tmp_path / "t"), words)).turns[0]
    assert turn.body is None
    assert turn.prompt == sent
    assert (turn.hash_ids, turn.block_tokens) == (exact.hash_ids, exact.block_tokens) == ([0, 1, 9], 16)
    with pytest.raises(UsageError, match="without a body"):
        _conversation(TraceWorkload(open_trace(tmp_path / "t")))


def test_folders_that_give_no_trace(tmp_path: Path, words: Words) -> None:
    with pytest.raises(UsageError):
        record_trace(tmp_path / "nowhere", tmp_path / "t")
    folder = run(tmp_path / "nothing", [])
    (folder / "sent.jsonl").write_text("")
    with pytest.raises(UsageError, match="no sent request to record"):
        record_trace(folder, tmp_path / "t")
    folder = _one(tmp_path, words)
    with pytest.raises(OutputError, match="cannot write"):
        record_trace(folder, tmp_path / "no" / "folder")
    (folder / "requests.jsonl").write_text("nonsense\n")
    with pytest.raises(TraceFormatError, match=r"requests\.jsonl:1"):
        record_trace(folder, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def _body(**fields: object) -> str:
    return json.dumps({"model": "m", **fields})


def test_prompts_of_every_kind() -> None:
    assert prompt_of(_body(prompt="hällo")) == "hällo"
    assert prompt_of(_body(prompt=[1, 2])) == [1, 2]
    assert prompt_of(_body(prompt=["a", "b"])) == "a\nb"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    assert prompt_of(_body(messages=messages)) == 'system\ns\nuser\n[{"type":"text","text":"u"}]\n'
    assert prompt_of(_body(messages=["odd"])) == "odd"


@pytest.mark.parametrize("body", ["nonsense", "[]", "{}", '{"prompt": 5}', '{"prompt": [1, "a"]}', '{"prompt": {}}'])
def test_bodies_without_a_prompt(body: str) -> None:
    assert prompt_of(body) is None


def test_ids_of_blocks() -> None:
    hasher = BlockHasher(block_tokens=2, bytes_per_block=4)
    assert hasher.hash_ids("aaaabbbbcccc", 6) == [0, 1, 2]
    assert hasher.hash_ids("aaaabbbbdddd", 6) == [0, 1, 3]
    assert hasher.hash_ids("aaaa", 2) == [0]
    assert hasher.hash_ids("xxxxbbbb", 4) == [4, 5]  # the same block after another one is another prefix
    assert hasher.hash_ids("aaaabbbbcccc", 6) == [0, 1, 2]
    assert len(hasher.hash_ids("aaaabbbbcccc", 3)) == 2  # fewer tokens than bytes promised: the last takes the rest
    assert hasher.hash_ids("aaaabbbb", 4)[1] != hasher.hash_ids("aaaabbbbcccc", 3)[1]
    assert len(set(hasher.hash_ids("aa", 7))) == 4  # more tokens than bytes promised
    assert hasher.hash_ids("", 0) == []
    hasher = BlockHasher(block_tokens=2, bytes_per_block=1)
    assert hasher.hash_ids([1, 2, 3, 4, 5], 99) == [0, 1, 2]
    assert hasher.hash_ids([1, 2, 3, 4, 6], 99) == [0, 1, 3]
    assert hasher.hash_ids([1, 2], 99) == [0]
    assert hasher.hash_ids([-1, 2**64], 0) == [4]


def _drive(folder: Path, endpoint: Endpoint, jobs: Iterator[LoadJob]) -> Path:
    """Run and save."""
    throughput = Throughput(requests_per_s=0, input_tokens_per_s=0, output_tokens_per_s=0, total_tokens_per_s=0)
    generator = Generator(workers=2, cpu_share=0, loop_lag_p99_s=0)
    with RunFolder(folder) as out:
        settings = DriveSettings(endpoint=endpoint, workers=2, keep_body=True)
        Fleet(settings).run(jobs, on_records=out.append, on_progress=lambda _: None)
        out.write_result(RunResult(endpoint=endpoint.path, throughput=throughput, generator=generator), {})
    return folder


def test_a_real_replay_recorded_again_is_the_same_file(tmp_path: Path, words: Words) -> None:
    lengths = Lengths(Uniform(4, 20))
    sessions = Sessions(
        RandomPrompts(words, lengths, 20), lengths, turns=Lengths(Uniform(1, 3)), think_s=Uniform(0, 0.1)
    )
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with start_blast_server("paced", tokens_per_s=500.0, ttft_s=0.01) as server:
        endpoint = Endpoint(base_url=server.url, path="/v1/completions", model=server.model)
        jobs = plan_jobs(sessions, seed=1, arrivals=Steady(40.0), count=20)
        recorded = record_trace(_drive(tmp_path / "run", endpoint, jobs), first)
        replay = plan_jobs(TraceWorkload(open_trace(first)), seed=2, arrivals=ReplayedArrivals())
        assert record_trace(_drive(tmp_path / "again", endpoint, replay), second) == recorded
    assert (recorded.sessions, recorded.left_out) == (20, 0)
    assert recorded.requests > 20
    assert second.read_bytes() == first.read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "again" / "requests.jsonl").read_text().splitlines()]
    assert {line["outcome"] for line in lines} == {"ok"}
