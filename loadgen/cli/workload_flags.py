"""Flags of `loadgen run` for the request contents and the client behaviour."""

import argparse

from loadgen.cli import values
from loadgen.quantities import Duration, Size

TRACES = ("trace", "mooncake", "bailian", "azure", "burstgpt", "servegen")
"""Each name reads a trace of any format, detected from its content; the names of formats are for readability."""
DATASETS = ("random", "shared-prefix", "text", "sharegpt", "custom", *TRACES)


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Prompts, lengths, sessions."""
    group = parser.add_argument_group(
        "workload",
        "Lengths: 128 | uniform:64-256 | normal:512,64 (mean, deviation) | lognormal:512,0.8 (median, sigma) | "
        "histogram:FILE, in tokens, text only "
        "(a chat template adds its own). Prompts get exactly that many tokens through the tokenizer.",
    )
    group.add_argument(
        "--dataset-name",
        choices=DATASETS,
        default="random",
        help="random words | shared-prefix: tenants with system prompts | text files | sharegpt JSON | custom JSONL | "
        "trace: Mooncake, Qwen-Bailian, kv-cache-tester, TraceLab or `loadgen trace` JSON lines, CSV of Azure, "
        "BurstGPT or with arrival_s,prompt_tokens,output_tokens, or a ServeGen folder; detected by content, the names "
        "of formats are synonyms (default random)",
    )
    group.add_argument("--dataset-path", metavar="PATH", help="file or folder; several text files: comma between them")
    group.add_argument(
        "--input-len", "--random-input-len", "--isl", default="256", metavar="LEN", help="default %(default)s"
    )
    group.add_argument(
        "--output-len", "--random-output-len", "--osl", "--sharegpt-output-len", metavar="LEN", help="default 64"
    )
    group.add_argument(
        "--random-range-ratio",
        type=values.share,
        default=0.0,
        metavar="R",
        help="lengths uniform in [(1-R) x LEN, (1+R) x LEN]",
    )
    group.add_argument(
        "--random-prefix-len",
        type=values.whole,
        default=0,
        metavar="N",
        help="tokens shared as the prefix of all prompts",
    )
    _add_text_flags(group)
    _add_prefix_flags(parser)
    _add_session_flags(parser)


def _add_text_flags(group: "argparse._ArgumentGroup") -> None:
    """How lengths become text."""
    group.add_argument(
        "--prompt-kind", choices=("text", "ids"), default="text", help="ids: token ids (completions only)"
    )
    group.add_argument(
        "--tokenizer",
        default="server",
        metavar="WHERE",
        help="server: use its /tokenize (default) | a tokenizer.json or its folder | none: about 1.3 tokens a word",
    )
    group.add_argument(
        "--vocab-size", type=values.count, metavar="N", help="for ids, if the tokenizer does not define it"
    )
    group.add_argument(
        "--max-model-len", type=values.count, metavar="N", help="longest prompt + output (default: server's)"
    )
    group.add_argument(
        "--length-scale",
        type=values.positive_float,
        default=1.0,
        metavar="X",
        help="data sets: lengths (and block sizes of hash_ids) times X; 0.03125 makes Mooncake's 512-token blocks 16",
    )
    group.add_argument(
        "--block-tokens",
        type=values.count,
        metavar="N",
        help="traces: tokens per id in hash_ids (default: that of the format: Mooncake 512, "
        "Bailian 16); checked against the lengths",
    )
    group.add_argument(
        "--columns",
        metavar="KEY=NAME,...",
        help="traces: the file is CSV with columns of these names: timestamp=NAME,input=NAME,output=NAME: arrival"
        " (dates, or numbers of unit=s, ms, us or ns; default s), tokens of prompt and response (default: by line 1)",
    )
    group.add_argument(
        "--cycle", action="store_true", help="repeat a data set when it ends (default: the run ends with it)"
    )


def _add_prefix_flags(parser: argparse.ArgumentParser) -> None:
    """Tenants and their system prompts."""
    group = parser.add_argument_group("shared prefixes (--dataset-name shared-prefix)")
    group.add_argument(
        "--tenants", "--gsp-num-groups", type=values.count, default=8, metavar="N", help="system prompts (default 8)"
    )
    group.add_argument(
        "--system-prompt-len",
        "--gsp-system-prompt-len",
        type=values.count,
        default=256,
        metavar="N",
        help="tokens each",
    )
    group.add_argument(
        "--prefix-depth",
        type=values.count,
        default=1,
        metavar="N",
        help="levels of the prefix tree that the system prompt's length is split over (1: tenants share no prefix)",
    )
    group.add_argument(
        "--zipf", type=float, default=0.0, metavar="S", help="popularity of tenants ~ 1/rank^S; 0 = equal"
    )


def _add_session_flags(parser: argparse.ArgumentParser) -> None:
    """Conversations of several turns."""
    group = parser.add_argument_group("sessions (random, shared-prefix and text)")
    group.add_argument("--turns", default="1", metavar="LEN", help="turns of a conversation, as a length (default 1)")
    group.add_argument(
        "--think-time", default="0", metavar="LEN", help="pause between answer and next turn, e.g. 2s, lognormal:2s,0.8"
    )


def add_behaviour_flags(parser: argparse.ArgumentParser) -> None:
    """Clients that do not behave."""
    group = parser.add_argument_group("client behaviour", "Shares of requests; the rest is well-behaved.")
    group.add_argument(
        "--disconnect-share", type=values.share, default=0.0, metavar="SHARE", help="leave at a random moment"
    )
    group.add_argument(
        "--disconnect-after", type=Duration(), default=2.0, metavar="T", help="... within this time (default 2s)"
    )
    group.add_argument("--slow-reader-share", type=values.share, default=0.0, metavar="SHARE", help="read slowly")
    group.add_argument(
        "--slow-reader-bytes",
        type=Size(above_zero=True),
        default=2000,
        metavar="B",
        help="... per second (default 2kB)",
    )
    group.add_argument("--timeout-share", type=values.share, default=0.0, metavar="SHARE", help="give up early")
    group.add_argument("--timeout-after", type=Duration(), default=0.5, metavar="T", help="... after this time")
    group.add_argument(
        "--malformed-share", type=values.share, default=0.0, metavar="SHARE", help="send what is no valid request"
    )
