"""A run as far as its folder is concerned: every job gets an immediate response from a server that counts words as
tokens.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from loadgen.endpoint import Backend, Endpoint, History
from loadgen.plan import Conduct, LoadJob
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.recording.hashing import prompt_of
from loadgen.result import Generator, RunResult, Throughput
from loadgen.run_folder import RunFolder

COMPLETIONS = Endpoint(base_url="http://localhost:1", path="/v1/completions", model="m")
CHAT = Endpoint(base_url="http://localhost:1", path="/v1/chat/completions", model="m", backend=Backend.CHAT)


def run(
    folder: Path, jobs: Iterable[LoadJob], *, endpoint: Endpoint = COMPLETIONS, usage: bool = True, seed: int = 0
) -> Path:
    """Write the folder of a run of these jobs.

    Args:
        usage: whether the server reports token counts. seed: of response times and of the lateness of sends.
    """
    rng = np.random.default_rng(seed)
    with RunFolder(folder) as out:
        for job in jobs:
            out.append(_answered(job, endpoint, usage, rng))
        out.write_result(
            RunResult(
                endpoint=endpoint.path,
                throughput=Throughput(
                    requests_per_s=1, input_tokens_per_s=1, output_tokens_per_s=1, total_tokens_per_s=1
                ),
                generator=Generator(workers=1, cpu_share=0, loop_lag_p99_s=0),
            ),
            {},
        )
    return folder


def edit(folder: Path, **changes: object) -> None:
    """Change fields of the first record."""
    path = folder / "requests.jsonl"
    first, *rest = path.read_bytes().splitlines()
    fields = msgspec.json.decode(first) | changes
    path.write_bytes(b"\n".join([msgspec.json.encode(fields), *rest]) + b"\n")


def _answered(job: LoadJob, endpoint: Endpoint, usage: bool, rng: np.random.Generator) -> list[RequestRecord]:
    """The records of one conversation."""
    history: History = [] if endpoint.backend is Backend.CHAT else ""
    intended_s = float(rng.random()) if job.due_s is None else job.due_s
    records: list[RequestRecord] = []
    ends_s: list[float] = []
    for number, turn in enumerate(job.conversation.turns):
        if number:
            intended_s = max(ends_s[wait] for wait in turn.waits_for or [number - 1]) + turn.think_s
        body = endpoint.body(turn, history)
        prompt = prompt_of(body.decode())
        tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt or [])
        ended_s = intended_s + float(rng.random())
        ends_s.append(ended_s)
        records.append(
            RequestRecord(
                index=job.index, turn=number, warmup=job.warmup, tenant=job.conversation.tenant,
                conduct=Conduct.NORMAL, outcome=RequestOutcome.OK, intended_s=intended_s, released_s=intended_s,
                started_s=intended_s + float(rng.random()) / 1000, ended_s=ended_s, status=200,
                input_tokens=tokens if usage else None, output_tokens=turn.output_tokens if usage else None,
                planned_input_tokens=turn.input_tokens, planned_output_tokens=turn.output_tokens,
                hash_ids=turn.hash_ids, block_tokens=turn.block_tokens, body=body, waits_for=turn.waits_for,
            )
        )  # fmt: skip
        if job.conversation.history:
            history = endpoint.extend(history, turn, f" answer {rng.integers(1000)}")
    return records
