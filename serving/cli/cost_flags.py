"""Flags of `cloudmatrix cost` that belong to one kind of step."""

import argparse

from serving.errors import ConfigError

DECODE_FLAGS = {
    "batch": 96,
    "context": 4096,
    "drafts": None,
    "draft_model": "",
    "acceptance": 0.7,
    "microbatch": None,
    "expert_dies": 0,
    "domains": None,
}
PREFILL_FLAGS = {"prompt": 4096, "reuse": 0.0, "perfect_balance": False, "prefill_attention": None}
"""Flags that only one kind of step has, with their defaults."""
DIVISION_FLAGS = {"attention_tp": 1, "head_tp": 1, "expert_tp": 1, "redundant": None}
"""Flags that either kind of step has, with their defaults."""


def check_no_flags(arguments: argparse.Namespace, question: str) -> None:
    """Refuse step flags when rows of a file define the steps.

    Args:
        question: the flag that names the file.
    Raises: ConfigError.
    """
    if arguments.aggregated:
        raise ConfigError(f"--aggregated is of one step; rows of {question} say their own")
    for name, default in (DECODE_FLAGS | PREFILL_FLAGS | DIVISION_FLAGS).items():
        if getattr(arguments, name) != default:
            raise ConfigError(f"--{name.replace('_', '-')} is of one step; rows of {question} say their own")


def check_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags of another mode.

    Raises: ConfigError.
    """
    if arguments.aggregated:
        if arguments.prefill is None:
            raise ConfigError("--aggregated is a step that does both: give its number of prompt tokens with --prefill")
        if arguments.explain:
            raise ConfigError("--explain explains a step of one kind only: leave out --aggregated")
        return
    flags = DECODE_FLAGS | PREFILL_FLAGS
    given = {name for name, default in flags.items() if getattr(arguments, name) != default}
    if arguments.prefill is not None:
        of_both = {"microbatch"} if arguments.microbatch is False else set()
        idle, needed, here = (given & DECODE_FLAGS.keys()) - of_both, "decode", "with --prefill"
    elif idle := given & PREFILL_FLAGS.keys():
        needed, here = "--prefill", "without it,"
    else:
        idle, needed, here = given & {"batch"} if arguments.tpot else set(), "a step", "with --tpot"
    for name in sorted(idle):
        raise ConfigError(f"--{name.replace('_', '-')} goes with {needed}; {here} it has no effect")
