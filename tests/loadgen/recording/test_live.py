"""The round trip with real workers and a real server: whatever answers take, the second trace is the first one."""

import json
from collections.abc import Iterator
from pathlib import Path

from loadgen.arrivals import ReplayedArrivals, Steady
from loadgen.driver.fleet import Fleet
from loadgen.driver.settings import DriveSettings
from loadgen.endpoint import Endpoint
from loadgen.plan import LoadJob
from loadgen.recording import record_trace
from loadgen.result import Generator, RunResult, Throughput
from loadgen.run_folder import RunFolder
from loadgen.selftest.process import start_blast_server
from loadgen.trace import open_trace
from loadgen.workload.datasets.traces import TraceWorkload
from loadgen.workload.distributions import Uniform
from loadgen.workload.lengths import Lengths
from loadgen.workload.plan_jobs import plan_jobs
from loadgen.workload.sessions import Sessions
from loadgen.workload.synthetic import RandomPrompts
from loadgen.workload.words import Words


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
