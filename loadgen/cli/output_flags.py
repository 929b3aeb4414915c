"""Flags of `loadgen run` for display and output files."""

import argparse
from pathlib import Path

from loadgen.cli import values


def add_output_flags(parser: argparse.ArgumentParser) -> None:
    """Figures, files, display."""
    group = parser.add_argument_group("figures and files")
    group.add_argument(
        "--slo",
        "--goodput",
        nargs="+",
        action="extend",
        default=[],
        metavar="SLO",
        help="ttft=500ms,tpot=50ms (or vLLM's form, milliseconds: ttft:500 tpot:50): goodput and attainment",
    )
    group.add_argument(
        "--metric-percentiles",
        type=values.percentiles,
        default=[50, 90, 95, 99],
        metavar="P,...",
        help="default 50,90,95,99",
    )
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl",
        metavar="M,...",
        help="metrics with percentile keys in the flat result, of ttft, tpot, itl, e2el (default %(default)s)",
    )
    group.add_argument(
        "--out",
        "--output-artifact-dir",
        type=Path,
        metavar="DIR",
        help="write result.json, requests.jsonl, report.html and what `loadgen trace record` needs",
    )
    _add_vllm_file_flags(group)
    _add_detail_flags(group)


def _add_vllm_file_flags(group: "argparse._ArgumentGroup") -> None:
    """The flat result file, named and written as vLLM does."""
    group.add_argument("--save-result", action="store_true", help="write vLLM's flat JSON file, as vLLM names it")
    group.add_argument("--save-detailed", action="store_true", help="... with its per-request lists and texts")
    group.add_argument("--append-result", action="store_true", help="... appended to the file")
    group.add_argument(
        "--result-dir", type=Path, default=Path(), metavar="DIR", help="folder of that file (default: here)"
    )
    group.add_argument("--result-filename", metavar="NAME", help="its name (default: made of label, load and time)")
    group.add_argument("--label", help="put into the file's name")
    values.add_pairs(group, "--metadata", help="kept with the result")


def _add_detail_flags(group: "argparse._ArgumentGroup") -> None:
    """Add the flags that leave out output, and that decide when to fail."""
    group.add_argument(
        "--no-save-prompts", dest="save_prompts", action="store_false", help="do not keep the request bodies in --out"
    )
    group.add_argument(
        "--no-sample-texts",
        dest="sample_texts",
        action="store_false",
        help="no beginnings of prompts and answers in result and report (nor with --no-save-prompts)",
    )
    group.add_argument(
        "--npus",
        type=values.count,
        metavar="N",
        help="NPUs (or GPUs) behind the server, for tokens per second of each (default: from its /metrics)",
    )
    group.add_argument("--no-report", dest="report", action="store_false", help="no report.html")
    group.add_argument(
        "--no-scrape", dest="scrape", action="store_false", help="do not read the server's /metrics during the run"
    )
    group.add_argument(
        "--metrics-url",
        metavar="URL",
        help="if /metrics has another URL; key and headers are sent to its host only if it is the server's",
    )
    group.add_argument(
        "--max-failure-share",
        type=values.share,
        default=0.0,
        metavar="SHARE",
        help="exit with 5 if more requests than this fail or contradict their usage (default 0: any)",
    )
    group.add_argument(
        "--disable-tqdm",
        "--quiet",
        dest="quiet",
        action="store_true",
        help="no live progress, only the table at the end",
    )
    group.add_argument("--json", action="store_true", help="print the result as JSON instead of a table")
