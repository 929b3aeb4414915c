"""Flags of `loadgen run`, named as those of `vllm bench serve`: target, load, duration, output."""

import argparse
from pathlib import Path

from loadgen.cli import values
from loadgen.quantities import Duration
from loadgen.server_address import URL_HELP, server_address

# Flags of `loadgen run` for the target, the arrivals and the duration. Names are those of `vllm bench serve`.
#
# Where aiperf or guidellm have another name for the same thing, it is an alias.


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """The server under test and the form of a request."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        "--base-url",
        "--target",
        dest="url",
        type=server_address,
        metavar="URL",
        help=URL_HELP,
    )
    group.add_argument("--host", help="with --port, instead of --url (default 127.0.0.1)")
    group.add_argument("--port", type=values.count, help="with --host, instead of --url (default 8000)")
    group.add_argument(
        "-m", "--model", "--served-model-name", help="name sent as `model`; default: the only one that the server has"
    )
    group.add_argument(
        "--backend",
        "--endpoint-type",
        choices=("openai", "openai-chat", "completions", "chat", "vllm"),
        default="openai",
        help="openai (= completions, vllm): /v1/completions; openai-chat (= chat): /v1/chat/completions",
    )
    group.add_argument("--endpoint", metavar="PATH", help="path, if it is another one")
    _add_access_flags(group)


def _add_access_flags(group: "argparse._ArgumentGroup") -> None:
    """Keys, headers, timeouts."""
    group.add_argument("--api-key", metavar="KEY", help="bearer token (default: OPENAI_API_KEY of the environment)")
    values.add_pairs(group, "--header", help="more header lines")
    group.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    group.add_argument(
        "--ready-check-timeout-sec",
        type=Duration(),
        default=0.0,
        metavar="T",
        help="wait this long for the server to come up (default: it must be there)",
    )
    group.add_argument("--request-timeout", type=Duration(), default=600.0, metavar="T", help="default 10m")
    group.add_argument("--connect-timeout", type=Duration(), default=10.0, metavar="T", help="default 10s")


def add_form_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for fields that every request body has."""
    form = parser.add_argument_group("form of a request")
    form.add_argument(
        "--no-stream", dest="stream", action="store_false", help="request whole responses: no TTFT, no ITL"
    )
    form.add_argument("--temperature", type=float, default=0.0, help="default 0")
    form.add_argument(
        "--top-p", type=float, help="draw from the likeliest tokens with this share of probability (default: all)"
    )
    form.add_argument("--top-k", type=int, help="draw from so many of the likeliest tokens (default: all)")
    form.add_argument(
        "--min-p", type=float, help="draw from tokens with at least this share of the likeliest one's probability"
    )
    form.add_argument(
        "--repetition-penalty", type=float, help="above 1: tokens of prompt and answer come again less often"
    )
    form.add_argument("--presence-penalty", type=float, help="taken from the logit of each token that the answer has")
    form.add_argument(
        "--frequency-penalty", type=float, help="taken from a token's logit as often as the answer has it"
    )
    form.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="ignore end tokens up to the planned length (default: yes, unless the data set has no lengths)",
    )
    form.add_argument(
        "--extra-body",
        "--extra-request-body",
        type=values.json_object,
        default={},
        metavar="JSON",
        help="fields merged into every body; null removes one",
    )


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """When requests are sent."""
    group = parser.add_argument_group(
        "load",
        "Closed loop: --concurrency alone; each answer makes room for the next request. Open loop: --request-rate, "
        "--rate-steps, a ramp, or a data set's own times; requests leave on schedule whatever the server does, and "
        "latency counts from the scheduled time. With both, --concurrency caps the open loop; waiting for the cap "
        "counts as latency.",
    )
    group.add_argument(
        "--concurrency",
        "--max-concurrency",
        type=values.count,
        metavar="N",
        help="requests open at once (closed loop; default 8 if no rate is given)",
    )
    group.add_argument(
        "--request-rate", "--rate", type=values.rate, metavar="R", help="requests per second; inf = all at once"
    )
    group.add_argument(
        "--arrival",
        "--arrival-pattern",
        choices=("poisson", "constant", "gamma", "trace"),
        help="gaps between requests: poisson (default), constant, gamma with --burstiness; "
        "trace = the data set's own times (default for data sets that have them and no --request-rate)",
    )
    group.add_argument(
        "--burstiness",
        "--vllm-burstiness",
        "--arrival-smoothness",
        type=values.burstiness,
        default=1.0,
        metavar="SHAPE",
        help="1 = Poisson, below 1 = bursts, above 1 = smoother, inf = constant",
    )
    _add_shape_flags(group)
    _add_extent_flags(parser)


def _add_shape_flags(group: "argparse._ArgumentGroup") -> None:
    """Open loops whose rate changes, and replays."""
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="rate grows over the whole run")
    group.add_argument(
        "--ramp-up-start-rps",
        type=values.positive_float,
        metavar="R",
        help="rate at the start of the ramp [requests/s]",
    )
    group.add_argument(
        "--ramp-up-end-rps", type=values.positive_float, metavar="R", help="rate at its end [requests/s]"
    )
    group.add_argument(
        "--rate-steps",
        type=values.rate_steps,
        metavar="R:T,...",
        help="rates one after another, e.g. 2:30s,8:30s,2:30s",
    )
    group.add_argument(
        "--rate-scale",
        type=values.positive_float,
        default=1.0,
        metavar="X",
        help="trace arrival: 2 = twice as fast as recorded",
    )
    group.add_argument(
        "--trace-from", type=Duration(), metavar="T", help="trace arrival: start at this time of the trace"
    )
    group.add_argument("--trace-to", type=Duration(), metavar="T", help="trace arrival: end at this time of it")


def _add_extent_flags(parser: argparse.ArgumentParser) -> None:
    """Duration, number of requests, and seed."""
    group = parser.add_argument_group("extent")
    group.add_argument(
        "--num-prompts",
        "--request-count",
        "--max-requests",
        type=values.count,
        metavar="N",
        help="stop after so many requests (conversations); default 100 if there is no --duration",
    )
    group.add_argument(
        "--duration",
        "--benchmark-duration",
        "--max-seconds",
        type=Duration(),
        metavar="T",
        help="stop sending after this time",
    )
    group.add_argument(
        "--drain",
        "--benchmark-grace-period",
        type=Duration(),
        default=60.0,
        metavar="T",
        help="then wait so long for answers (default 60s)",
    )
    group.add_argument(
        "--num-warmups",
        "--warmup-request-count",
        type=values.whole,
        default=0,
        metavar="N",
        help="requests before the run, under the same load, left out of every figure",
    )
    group.add_argument(
        "--concurrency-ramp",
        type=Duration(),
        default=0.0,
        metavar="T",
        help="closed loop: open the slots over this time",
    )
    group.add_argument("--workers", type=values.count, default=1, metavar="N", help="sending processes (default 1)")
    group.add_argument(
        "--seed", type=values.whole, metavar="N", help="repeats prompts and times exactly (default: new ones each run)"
    )
    group.add_argument("--cache-bust", metavar="SALT", help="with --seed: the same lengths and times, other prompts")


def add_series_flags(parser: argparse.ArgumentParser) -> None:
    """Several runs in one command."""
    group = parser.add_argument_group("several runs")
    group.add_argument("--sweep", choices=("rate", "concurrency"), help="one run for each of several values")
    group.add_argument(
        "--sweep-values",
        type=values.numbers,
        metavar="A,B,...",
        help="default: chosen between an idle and a full server",
    )
    group.add_argument("--sweep-points", type=values.count, default=6, metavar="N", help="if there are no values")
    group.add_argument(
        "--find-max",
        choices=("rate", "concurrency"),
        help="search the largest value that holds --slo for --attainment of the requests",
    )
    group.add_argument(
        "--within",
        type=Duration(),
        metavar="T",
        help="with --find-max: the search takes about so long; it brackets the value in a sixth of that, and narrows it"
        " in the rest (default: until it is certain to 5 %%)",
    )
    group.add_argument(
        "--attainment",
        type=values.share,
        default=0.9,
        metavar="SHARE",
        help="of requests within all SLOs (default 90%%)",
    )
    group.add_argument("--probe-requests", type=values.count, default=60, metavar="N", help="least requests per probe")
    group.add_argument(
        "--max-probes", type=values.count, default=16, metavar="N", help="most runs of a search (default 16)"
    )
    group.add_argument(
        "--repeats",
        "--num-runs",
        "--num-profile-runs",
        type=values.count,
        default=1,
        metavar="N",
        help="repeat each run with new seeds and give confidence intervals over the repetitions",
    )
    group.add_argument("--pause", type=Duration(), default=1.0, metavar="T", help="between runs (default 1s)")


# Flags of `loadgen run` for display and output files.


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
