"""Flags of `simulate` and `plan` for a trace, in the same words."""

import argparse


def add_block_tokens(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--block-tokens`."""
    group.add_argument(
        "--block-tokens",
        type=int,
        metavar="N",
        help="tokens per id in the trace's hash_ids (default: that of its format: Mooncake 512, "
        "Bailian 16); checked against the lengths",
    )


def add_columns(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--columns`."""
    group.add_argument(
        "--columns",
        metavar="TIME,PROMPT,OUTPUT",
        help="the trace is CSV with these columns: arrivals (seconds or dates), tokens of prompts and of answers "
        "(default: by its first line)",
    )


def add_concurrency(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Effects: adds `--concurrency`."""
    group.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="closed loop: N requests at a time, in their order, each sent when another has finished; their times are "
        "ignored",
    )
