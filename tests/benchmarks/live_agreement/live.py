"""The live half: the shipped simulated system as it is, and a replay of the trace against its endpoint.

All times that leave this file are virtual: what a client measured, times the time scale.
"""

import contextlib
import io
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from hardware.cost.cost_model import CostModel
from hardware.cost.loads import PrefillLoad
from loadgen.cli.main import main as loadgen
from loadgen.record import RequestOutcome
from loadgen.run_folder import read_records, read_result
from serving.virtual.movers import LOOKUP_S
from tests.benchmarks.conditions import ROOT, STORYTELLER
from tests.benchmarks.live_agreement.outcome import Row
from tests.benchmarks.served import HOST, Served, Setup

MODEL = "deepseek-r1"
PROBES = 12
_DEPLOY = ROOT / "deploy"


@dataclass(frozen=True, slots=True)
class LiveSetup(Setup):
    """What is varied of `deploy/cloudmatrix384-live.toml`.

    Args:
        time_scale: virtual seconds in a real one. prefill_instances: 0 = as shipped.
    """

    time_scale: float = 0.2
    prefill_instances: int = 0

    def toml(self, port: int) -> str:
        """The shipped file with these settings."""
        text = (_DEPLOY / "cloudmatrix384-live.toml").read_text()
        changes = [
            ('"models/', f'"{_DEPLOY}/models/'),
            ("time_scale = 1.0", f"time_scale = {self.time_scale}"),
            ("[[cluster.nodes]]", "[cluster]\ndashboard_port = 0\n\n[[cluster.nodes]]"),
            ("[gateway]", f"[gateway]\nport = {port}"),
        ]
        if self.prefill_instances:
            changes.append(("[prefill]\nreplicas = 6", f"[prefill]\nreplicas = {self.prefill_instances}"))
        for old, new in changes:
            assert old in text, f"the shipped configuration lacks {old!r}"
            text = text.replace(old, new)
        return text


def live_setup(time_scale: float, prefill_instances: int) -> LiveSetup:
    """A setup."""
    return LiveSetup(_DEPLOY, time_scale=time_scale, prefill_instances=prefill_instances)


def warm_up(port: int, folder: Path) -> None:
    """Let every instance do everything once: the first request opens connections and imports modules."""
    flags = ["--dataset-name", "random", "--input-len", "uniform:700-3000", "--output-len", "12", "--num-prompts", "48"]
    _run(port, folder, [*flags, "--concurrency", "12", "--seed", "77"])


def real_overhead_s(port: int, folder: Path, cost: CostModel, dies: int, time_scale: float, tokens: int) -> float:
    """Real time that a request takes beside what is predicted of it, on an idle system [s]; median.

    HTTP on both sides, JSON, the links' hops, waking threads: whatever the machine does, not the simulated system.
    """
    flags = ["--dataset-name", "random", "--input-len", str(tokens), "--output-len", "2", "--num-prompts", str(PROBES)]
    _run(port, folder, [*flags, "--concurrency", "1", "--seed", "78"])
    predicted_s = LOOKUP_S + cost.prefill_step_s(PrefillLoad(tokens, tokens * tokens / 2, dies))
    ttfts = [one.chunks()[0] - one.intended_s for one in read_records(folder) if one.outcome is RequestOutcome.OK]
    return statistics.median(ttfts) - predicted_s / time_scale


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave.

    Attributes:
        rows: in order of the trace. verdict: the load generator's own. late_s: how late it sent, p99, real time.
    """

    rows: list[Row]
    verdict: str
    late_s: float


def replay(port: int, folder: Path, trace: Path, requests: int, time_scale: float) -> Replayed:
    """Send the trace in real time, slowed down by the time scale.

    Raises: RuntimeError if a request failed.
    """
    flags = ["--dataset-name", "mooncake", "--dataset-path", str(trace), "--arrival", "trace"]
    flags += ["--rate-scale", f"{time_scale:g}", "--num-prompts", str(requests), "--drain", "10m", "--seed", "1"]
    _run(port, folder, flags)
    records = sorted(read_records(folder), key=lambda one: one.index)
    rows = []
    for one in records:
        chunks, tokens = one.chunks(), one.output_tokens
        if one.outcome is not RequestOutcome.OK or not chunks or tokens is None:
            raise RuntimeError(f"request {one.index} ended with {one.outcome}: {one.error}")
        first, last = chunks[0] - one.intended_s, chunks[-1] - one.intended_s
        pace = (last - first) / (tokens - 1) if tokens > 1 else 0.0
        cached = one.cached_tokens or 0
        rows.append(Row(first * time_scale, pace * time_scale, last * time_scale, tokens, cached))
    generator = read_result(folder).generator
    verdict = "; ".join(generator.reasons) or f"no bottleneck, {generator.cpu_share:.0%} of a core"
    late = sorted((one.started_s or 0.0) - one.released_s for one in records)
    return Replayed(rows, verdict, late[int(0.99 * len(late))])


def late_steps(served: Served) -> tuple[int, int]:
    """Steps that could not keep their time, and all steps."""
    late = steps = 0
    for pool in json.loads(served.get("/cluster"))["pools"]:
        for replica in pool["replicas"]:
            late += replica["late_steps_total"] or 0
            steps += replica["steps_total"] or 0
    return late, steps


def _run(port: int, folder: Path, flags: list[str]) -> None:
    """One run of the load generator with token ids as prompts, so that the server counts what the trace says.

    Raises: RuntimeError with its output if it fails.
    """
    fixed = ["run", "--url", f"http://{HOST}:{port}", "--model", MODEL, "--prompt-kind", "ids", "--ignore-eos"]
    fixed += ["--tokenizer", str(STORYTELLER), "--no-report", "--no-scrape", "--no-save-prompts", "--quiet"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = loadgen([*fixed, *flags, "--request-timeout", "10m", "--out", str(folder)])
    if status:
        raise RuntimeError(f"the load generator ended with {status}:\n{said.getvalue()}")
