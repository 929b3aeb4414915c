"""The live half: the shipped simulated system, and a replay of the trace against its endpoint.

All times that leave this module are virtual: a client's measurement, multiplied by the time scale.
"""

import contextlib
import io
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
from tests.benchmarks.served import Setup

_DEPLOY = ROOT / "deploy"
PROBES, PROBE_TOKENS = 12, 4000


@dataclass(frozen=True, slots=True)
class LiveSetup(Setup):
    """Variable settings of `deploy/cloudmatrix384-live.toml`: virtual seconds per real one; instances, 0 = as
    shipped.
    """

    time_scale: float = 0.2
    prefill_instances: int = 0

    def toml(self) -> str:
        """The shipped file with these settings."""
        text = (_DEPLOY / "cloudmatrix384-live.toml").read_text()
        changes = [
            ('"models/', f'"{_DEPLOY}/models/'),
            ("time_scale = 1.0", f"time_scale = {self.time_scale}"),
            ("[[cluster.nodes]]", "[cluster]\ndashboard_port = 0\n\n[[cluster.nodes]]"),
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


def warm_up(url: str, folder: Path) -> None:
    """Use every instance once: the first request opens connections and imports modules."""
    flags = ["--dataset-name", "random", "--input-len", "uniform:700-3000", "--output-len", "12", "--num-prompts", "48"]
    _run(url, folder, [*flags, "--concurrency", "12", "--seed", "77"])


def real_overhead_s(url: str, folder: Path, cost: CostModel, dies: int, time_scale: float) -> float:
    """Real time of a request beyond its predicted time, on an idle system [s]; median.

    HTTP on both sides, JSON, the links' hops, thread wake-ups: the machine's share, not the simulated system's.
    """
    flags = ["--dataset-name", "random", "--input-len", str(PROBE_TOKENS), "--output-len", "2"]
    _run(url, folder, [*flags, "--num-prompts", str(PROBES), "--concurrency", "1", "--seed", "78"])
    predicted_s = LOOKUP_S + cost.prefill_step_s(PrefillLoad(PROBE_TOKENS, PROBE_TOKENS**2 / 2, dies))
    ttfts = [one.chunks()[0] - one.intended_s for one in read_records(folder) if one.outcome is RequestOutcome.OK]
    return statistics.median(ttfts) - predicted_s / time_scale


def replay(url: str, folder: Path, trace: Path, requests: int, time_scale: float) -> tuple[list[Row], str]:
    """Send the trace in real time, slowed down by the time scale.

    Returns: rows in the trace's order, and the load generator's verdict on itself.
    """
    flags = ["--dataset-name", "mooncake", "--dataset-path", str(trace), "--arrival", "trace"]
    flags += ["--rate-scale", f"{time_scale:g}", "--num-prompts", str(requests), "--drain", "10m", "--seed", "1"]
    _run(url, folder, flags)
    rows = []
    for one in sorted(read_records(folder), key=lambda one: one.index):
        chunks, tokens = one.chunks(), one.output_tokens
        if one.outcome is not RequestOutcome.OK or not chunks or tokens is None:
            raise RuntimeError(f"request {one.index} ended with {one.outcome}: {one.error}")
        first, last = ((at - one.intended_s) * time_scale for at in (chunks[0], chunks[-1]))
        rows.append(Row.of(first, last, tokens, one.cached_tokens or 0))
    generator = read_result(folder).generator
    return rows, "; ".join(generator.reasons) or f"no bottleneck, {generator.cpu_share:.0%} of a core"


def _run(url: str, folder: Path, flags: list[str]) -> None:
    """One run of the load generator with token ids as prompts, so that the server counts exactly the trace's tokens."""
    fixed = ["run", "--url", url, "--model", "deepseek-r1", "--prompt-kind", "ids", "--ignore-eos"]
    fixed += ["--tokenizer", str(STORYTELLER), "--no-report", "--no-scrape", "--no-save-prompts", "--quiet"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = loadgen([*fixed, *flags, "--request-timeout", "10m", "--out", str(folder)])
    if status:
        raise RuntimeError(f"the load generator ended with {status}:\n{said.getvalue()}")
