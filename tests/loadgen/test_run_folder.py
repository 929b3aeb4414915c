"""The folder of a run: written results can be read again, and every failure is one line."""

import json
from array import array
from pathlib import Path

import pytest

from loadgen import run_folder
from loadgen.errors import OutputError, TraceFormatError, UsageError
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.result import Generator, RunResult, Throughput
from loadgen.run_folder import RunFolder

RECORD = RequestRecord(
    index=3, turn=1, outcome=RequestOutcome.OK, started_s=0.5, chunk_times=array("d", [0.6, 0.75]).tobytes(),
    chunk_tokens=array("i", [2, 1]).tobytes(), server_times={"queue": 0.01}, hash_ids=[1, 2],
    body=b'{"prompt":"h\xc3\xa4"}',
)  # fmt: skip
RESULT = RunResult(
    throughput=Throughput(requests_per_s=1, input_tokens_per_s=2, output_tokens_per_s=3, total_tokens_per_s=5),
    generator=Generator(workers=1, cpu_share=0.1, loop_lag_p99_s=0.001),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run") as folder:
        folder.append([RECORD])
        folder.write_result(RESULT, {"completed": 1})
    [record] = run_folder.read_records(tmp_path / "run")
    expected = RequestRecord(**{name: getattr(RECORD, name) for name in RECORD.__struct_fields__} | {"body": None})
    assert record == expected
    assert run_folder.read_bodies(tmp_path / "run") == {(3, 1): '{"prompt":"hä"}'}
    assert run_folder.read_result(tmp_path / "run") == RESULT
    assert json.loads((tmp_path / "run" / "result.json").read_text())["completed"] == 1


def test_records_are_there_before_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append([RECORD])
    assert len(list(run_folder.read_records(tmp_path))) == 1
    folder.close()


def test_what_was_written_is_not_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_result(RESULT, {})
    with pytest.raises(OutputError, match="already holds"):
        RunFolder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        RunFolder(tmp_path / "file" / "run")


def test_the_requests_of_a_killed_run_are_not_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.append([RECORD])
    with pytest.raises(OutputError, match="already holds"):
        RunFolder(tmp_path)
    assert len(list(run_folder.read_records(tmp_path))) == 1


def test_a_folder_where_nothing_was_sent_may_be_used(tmp_path: Path) -> None:
    RunFolder(tmp_path).close()
    with RunFolder(tmp_path) as folder:
        folder.append([RECORD])
    assert len(list(run_folder.read_records(tmp_path))) == 1


def test_results_that_are_missing(tmp_path: Path) -> None:
    RunFolder(tmp_path).close()
    with pytest.raises(UsageError, match="--no-save-prompts"):
        run_folder.read_bodies(tmp_path)

    with pytest.raises(UsageError, match="--out"):
        run_folder.read_result(tmp_path)
    with pytest.raises(UsageError, match="--sweep"):
        run_folder.read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(TraceFormatError, match="not a sweep"):
        run_folder.read_sweep(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"loadgen": {}}', "[]", '{"completed": 1}'])
def test_a_file_that_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(TraceFormatError, match=r"result\.json"):
        run_folder.read_result(tmp_path)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text('\n{"index": "x", "chunk_times_s": [], "chunk_tokens": []}\n')
    with pytest.raises(TraceFormatError, match=r"requests\.jsonl:2"):
        list(run_folder.read_records(tmp_path))
    (tmp_path / "sent.jsonl").write_text("nonsense\n")
    with pytest.raises(TraceFormatError, match=r"sent\.jsonl:1"):
        run_folder.read_bodies(tmp_path)
    with pytest.raises(UsageError):
        list(run_folder.read_records(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "line",
    [
        b'{"index": 0, "chunk_times_s": [], "chunk_tokens": [3000000000]}',
        b'{"index": 0, "chunk_times_s": [], "chunk_tokens": [], "error": "caf\xe9"}',
    ],
)
def test_a_line_that_another_program_wrote_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "requests.jsonl").write_bytes(line)
    with pytest.raises(TraceFormatError, match=r"requests\.jsonl:1"):
        list(run_folder.read_records(tmp_path))
