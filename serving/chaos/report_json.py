"""report.json: everything that the page shows, for scripts."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from serving.chaos.console import lost_requests, problems
from serving.chaos.findings import ChaosFindings
from serving.chaos.result import ChaosRun
from serving.errors import ConfigError
from serving.version import VERSION


def report_json(run: ChaosRun, found: ChaosFindings) -> bytes:
    """The report as indented JSON. Effects: none."""
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
        "events": [_without_clock(asdict(event)) for event in run.events],
        "not_ready": [
            {"at_s": round(down.begun_s - run.begun_s, 3), "lasts_s": round(down.ended_s - down.begun_s, 3)}
            for down in run.downs
        ],
        "samples": [asdict(sample) for sample in run.samples],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _without_clock(event: dict[str, Any]) -> dict[str, Any]:
    del event["at_clock_s"]  # means nothing outside the process
    return event


def make_folder(folder: Path) -> None:
    """Raises: ConfigError if there can be no such folder. Effects: the folder is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be made ({error.strerror}): name another folder") from error


def write_file(path: Path, content: bytes) -> None:
    """Raises: ConfigError if the file cannot be written. Effects: the file is there."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another folder with --out") from error
