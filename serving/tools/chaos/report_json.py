"""report.json: all contents of the page, for scripts."""

from dataclasses import asdict
from typing import Any

import msgspec

from serving.tools.chaos.console import lost_requests, problems
from serving.tools.chaos.findings import ChaosFindings
from serving.tools.chaos.hit_stream import as_value, drawn_stream
from serving.tools.chaos.result import ChaosRun
from serving.tools.chaos.tables import outcome
from serving.version import VERSION


def report_json(run: ChaosRun, found: ChaosFindings) -> bytes:
    """The report as indented JSON."""
    stream = drawn_stream(run)
    value: dict[str, Any] = {
        "version": VERSION,
        "scenario": run.scenario,
        "seed": run.seed,
        "model": run.model,
        "clean": found.clean,
        "interrupted": run.interrupted,
        "asked_s": run.asked_s,
        "duration_s": round(run.duration_s, 3),
        "references": run.references,
        "logprob_distance": run.logprob_distance,
        **asdict(found),
        "problems": problems(run, found),
        "lost_requests": lost_requests(run),
        "repaired_flips": run.leaks.repaired_flips,
        "stream": None if stream is None else as_value(stream),
        "events": [{**_without_clock(asdict(event)), "outcome": outcome(event, run)} for event in run.events],
        "not_ready": [
            {"at_s": round(down.begun_s - run.begun_s, 3), "lasts_s": round(down.ended_s - down.begun_s, 3)}
            for down in run.downs
        ],
        "samples": [asdict(sample) for sample in run.samples],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _without_clock(event: dict[str, Any]) -> dict[str, Any]:
    del event["at_clock_s"]  # meaningless outside the process
    return event
