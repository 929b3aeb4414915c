"""Every tool reads the same requests from the same file, and refuses the same files in the same words."""

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from loadgen.cli import run_command
from loadgen.cli.build_workload import ModelFacts, build_content
from loadgen.endpoint import Endpoint
from loadgen.errors import TraceFormatError, UsageError
from loadgen.trace import Reading, describe, open_trace
from loadgen.workload.datasets import TraceWorkload
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import Words
from serving.cli.command_line import command_parser
from serving.cli.plan import order_of
from serving.cli.simulate import open_shard
from serving.errors import ConfigError
from serving.virtual.workload.columns import RequestStream, TraceError
from tests.benchmarks.autoscaling.play import chosen_loads
from tests.benchmarks.bench_autoscaler import command_line
from tests.benchmarks.conditions import ROOT
from tests.cases.traces import BAD, GOOD, NOTES, Request, chat, line, mooncake, servegen, written
from tests.loadgen.workload.conftest import bpe, words

__all__ = ["bpe", "words"]
CONFIG = str(ROOT / "deploy" / "cloudmatrix384.toml")
Read = list[tuple[Request, tuple[tuple[int, int], ...]]]
"""Requests in order of arrival; for each block, the request that had it first, and its position in it."""
Tool = Callable[[Path, Sequence[str], Words], Read]


def known(requests: Iterable[tuple[float, int, int, Sequence[int]]]) -> Read:
    """Requests with their shared prefixes, independent of the id values."""
    first: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for number, (arrival_s, prompt, output, ids) in enumerate(sorted(requests, key=lambda one: one[0])):
        shared = tuple(first.setdefault((place, one), (number, place)) for place, one in enumerate(ids))
        found.append(((round(arrival_s, 9), prompt, output), shared))
    return found


def of_workload(workload: RequestStream) -> Read:
    return known((one.arrival_s, one.prompt_tokens, one.output_tokens, one.blocks) for one in workload.requests)


parser_of = cache(command_parser)


def simulate(path: Path, flags: Sequence[str], words: Words) -> Read:
    arguments = parser_of("simulate").parse_args(["simulate", "--config", CONFIG, "--trace", str(path), *flags])
    return of_workload(open_shard(vars(arguments), 0, 128, 0, 1))


def plan(path: Path, flags: Sequence[str], words: Words) -> Read:
    arguments = parser_of("plan").parse_args(["plan", "--config", CONFIG, "--trace", str(path), *flags])
    return of_workload(order_of(arguments).trace.open())


def bench(path: Path, flags: Sequence[str], words: Words) -> Read:
    [load] = chosen_loads(command_line(["--trace", str(path), *flags]))
    return of_workload(load.open())


def loadgen(name: str, path: Path, flags: Sequence[str], words: Words) -> Read:
    parser = argparse.ArgumentParser()
    run_command.add_flags(parser)
    given = parser.parse_args(["--dataset-name", name, "--dataset-path", str(path), *flags])
    model = ModelFacts(Endpoint(base_url="http://127.0.0.1", path="/v1/completions", model="m"), None, None)
    workload = build_content(given, model, words, 0).workload
    requests = []
    for conversation in workload.conversations(np.random.default_rng(0)):
        at_s = conversation.arrival_s or 0.0
        for turn in conversation.turns:
            at_s += turn.think_s
            requests.append((at_s, turn.input_tokens or 0, turn.output_tokens, turn.hash_ids))
    return known(requests)


TOOLS: dict[str, Tool] = {
    "simulate": simulate,
    "plan": plan,
    "bench_autoscaler": bench,
    "loadgen": partial(loadgen, "trace"),
    "loadgen, by another name": partial(loadgen, "mooncake"),
}


@pytest.mark.parametrize("sample", GOOD)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_trace_is_the_same_to_every_tool(tmp_path: Path, words: Words, tool: str, sample: str) -> None:
    text, expected = GOOD[sample]
    path = written(tmp_path, text)
    read = TOOLS[tool](path, (), words)
    assert [request for request, _ in read] == expected
    assert read == simulate(path, (), words)


def test_prefixes_are_those_of_the_file(tmp_path: Path, words: Words) -> None:
    shared = {name: [ids for _, ids in simulate(written(tmp_path, GOOD[name][0]), (), words)] for name in GOOD}
    assert shared["mooncake"][1] == ((0, 0), (1, 1))
    assert shared["mooncake"][3] == ((0, 0), (0, 1), (3, 2), (3, 3))
    assert shared["mooncake, 64-bit hashes"][1] == ((0, 0), (1, 1))
    assert shared["bailian"] == [((0, 0), (0, 1), (0, 2)), ((1, 0), (1, 1)), ((0, 0), (0, 1), (0, 2), (2, 3))]
    assert shared["ours"][1] == ((0, 0), (0, 1))


@pytest.mark.parametrize("tool", TOOLS)
def test_what_servegen_makes_is_the_same_to_every_tool(tmp_path: Path, words: Words, tool: str) -> None:
    folder = servegen(tmp_path / "servegen")
    read = TOOLS[tool](folder, (), words)
    assert len(read) > 20
    assert read == simulate(folder, (), words)


@pytest.mark.parametrize("tool", TOOLS)
def test_the_block_size_is_a_flag(tmp_path: Path, words: Words, tool: str) -> None:
    path = written(tmp_path, mooncake(line(0, 1600, ids=tuple(range(100))), line(1, 40, ids=(0, 1, 2))))
    read = TOOLS[tool](path, ("--block-tokens", "16"), words)
    assert [len(shared) for _, shared in read] == [100, 3]
    with pytest.raises((ConfigError, UsageError), match="3 hash_ids for 40 tokens; blocks of 32 tokens make it 2"):
        TOOLS[tool](written(tmp_path, mooncake(line(0, 40, ids=(0, 1, 2)))), ("--block-tokens", "32"), words)
    with pytest.raises((ConfigError, UsageError), match="no hash_ids; leave --block-tokens out"):
        TOOLS[tool](written(tmp_path, GOOD["plain"][0]), ("--block-tokens", "32"), words)
    with pytest.raises((ConfigError, UsageError), match="blocks have 16 tokens; leave --block-tokens out"):
        TOOLS[tool](written(tmp_path, GOOD["ours"][0]), ("--block-tokens", "32"), words)
    bailian = written(tmp_path, mooncake(chat(0, -1, 0, 40, (1, 2))))
    assert len(TOOLS[tool](bailian, ("--block-tokens", "32"), words)[0][1]) == 2


@pytest.mark.parametrize("sample", BAD)
def test_a_bad_trace_is_refused_by_every_tool_in_the_same_words(tmp_path: Path, words: Words, sample: str) -> None:
    text, problem = BAD[sample]
    path = written(tmp_path, text)
    said = set()
    for tool in TOOLS.values():
        with pytest.raises((TraceError, TraceFormatError), match=re.escape(str(path)) + ".*" + problem) as caught:
            tool(path, (), words)
        said.add(str(caught.value))
    with pytest.raises(TraceFormatError) as refused:
        describe(open_trace(path))
    assert said == {str(refused.value)}
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sample", GOOD)
def test_what_had_to_be_made_sense_of_is_said_by_every_tool(tmp_path: Path, words: Words, sample: str) -> None:
    path = written(tmp_path, GOOD[sample][0])
    arguments = parser_of("simulate").parse_args(["simulate", "--config", CONFIG, "--trace", str(path)])
    notes = open_shard(vars(arguments), 0, 128, 0, 1).notes
    simulated = {kind: note for kind, note in notes.items() if kind != "answers"}
    workload = TraceWorkload(open_trace(path), words)
    list(workload.conversations(np.random.default_rng(0)))
    assert workload.fit.tally.warnings() == [*simulated.values()]
    assert describe(open_trace(path)).notes == (*simulated.values(),)
    assert [NOTES[sample] in note for note in simulated.values()] == [True] * (sample in NOTES)


def test_a_file_that_is_not_there(tmp_path: Path, words: Words) -> None:
    for tool in TOOLS.values():
        with pytest.raises((TraceError, TraceFormatError), match=r"cannot be read \(No such file.*check the path"):
            tool(tmp_path / "nothing.jsonl", (), words)


def test_a_folder_of_something_else(tmp_path: Path, words: Words) -> None:
    for tool in TOOLS.values():
        with pytest.raises((TraceError, TraceFormatError), match=r"a folder without chunk-N-trace\.csv"):
            tool(tmp_path, (), words)


def test_prompts_have_the_tokens_that_the_trace_says(tmp_path: Path, words: Words, bpe: LocalTokenizer) -> None:
    """Ids are prefixes in the text, too: equal ones start equally, to the token."""
    trace = open_trace(written(tmp_path, GOOD["bailian"][0]), Reading())
    conversations = TraceWorkload(trace, words).conversations(np.random.default_rng(0))
    first, second, third = (bpe.ids(str(one.turns[0].prompt)) or [] for one in conversations)
    assert [len(first), len(second), len(third)] == [40, 32, 60]
    assert first == third[:40]
    assert first[:16] != second[:16]


@pytest.mark.parametrize("factor", ["0.37", "0.5", "2.5"])
@pytest.mark.parametrize("sample", ["mooncake", "mooncake, sessions", "azure 2023", "plain"])
def test_lengths_are_scaled_by_one_rule(tmp_path: Path, words: Words, sample: str, factor: str) -> None:
    path = written(tmp_path, GOOD[sample][0])
    scaled = simulate(path, ("--length", factor), words)
    assert scaled == loadgen("trace", path, ("--length-scale", factor), words) != simulate(path, (), words)
