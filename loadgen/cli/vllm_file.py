"""The flat result of `vllm bench serve`: the same keys, the same file name, the same flags."""

import datetime
from pathlib import Path
from typing import Literal

import msgspec

from loadgen.cli.bench import Bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.errors import OutputError
from loadgen.metrics.vllm_keys import flat as vllm_keys
from loadgen.output import explained
from loadgen.record import RequestRecord
from loadgen.result import RunResult


def flat_result(
    bench: Bench, load: LoadSchedule, result: RunResult, runs: list[list[RequestRecord]], *, date: str, detailed: bool
) -> dict[str, object]:
    """vLLM's keys for one result."""
    flags = bench.flags
    flat = vllm_keys(
        result,
        runs,
        percentile_metrics=[name.strip() for name in flags.percentile_metrics.split(",") if name.strip()],
        percentiles=flags.metric_percentiles,
        detailed=detailed,
        request_rate=load.rate_per_s,
        burstiness=flags.burstiness,
        max_concurrency=load.concurrency,
        num_prompts=load.conversations or result.requests,
        backend=flags.backend,
        tokenizer=None if flags.tokenizer in ("server", "none") else flags.tokenizer,
        date=date,
    )
    return {**flat, **dict(flags.metadata), "label": flags.label}


def save_flat_file(bench: Bench, load: LoadSchedule, result: RunResult, runs: list[list[RequestRecord]]) -> Path | None:
    """Write the file for `--save-result` or `--append-result`, with vLLM's naming.

    Returns: its path; None if neither flag is set.
    Raises: OutputError.
    """
    flags = bench.flags
    if not (flags.save_result or flags.append_result or flags.result_filename):
        return None
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    flat = flat_result(bench, load, result, runs, date=date, detailed=flags.save_detailed)
    path: Path = flags.result_dir / (flags.result_filename or _name(bench, load, date))
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder")
    mode: Literal["ab", "wb"] = "ab" if flags.append_result else "wb"
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write((b"\n" if file.tell() else b"") + msgspec.json.encode(flat))
    return path


def _name(bench: Bench, load: LoadSchedule, date: str) -> str:
    """vLLM's file name."""
    flags = bench.flags
    cap = f"-concurrency{load.concurrency}" if load.concurrency is not None else ""
    model = bench.endpoint.model.rsplit("/", maxsplit=1)[-1]
    rate = "inf" if load.rate_per_s is None else str(load.rate_per_s)
    if flags.ramp_up_strategy:
        rate = f"ramp-up-{flags.ramp_up_strategy}-{flags.ramp_up_start_rps}qps-{flags.ramp_up_end_rps}"
    return f"{flags.label or flags.backend}-{rate}qps{cap}-{model}-{date}.json"
