"""Flags that the chosen workload does not use: named in the result, so that none is ignored without a word."""

import argparse

from loadgen.cli.load_flags import add_form_flags
from loadgen.cli.workload_flags import DATASETS, TRACES, add_workload_flags

_SYNTHETIC = frozenset({"random", "shared-prefix", "text"})
_GIVEN = frozenset({"sharegpt", "custom"})
_TENANTS = frozenset({"shared-prefix"})
_ALL = frozenset(DATASETS)
_OF_BODIES = "trace"
"""Represents a trace with bodies, which define all request parameters; all other traces are treated the same way."""
_WRITTEN = frozenset(TRACES) - {_OF_BODIES}
_RENDERED = _ALL - {_OF_BODIES}
USED_BY = {
    "dataset_path": _ALL - {"random", "shared-prefix"},
    "input_len": _SYNTHETIC,
    "output_len": _SYNTHETIC | _GIVEN,
    "random_range_ratio": _SYNTHETIC | _GIVEN,
    "random_prefix_len": frozenset({"random"}),
    "prompt_kind": _ALL - {"text"} - _GIVEN,
    "max_model_len": _RENDERED,
    "length_scale": _WRITTEN,
    "block_tokens": frozenset(TRACES),
    "columns": frozenset(TRACES),
    "tenants": _TENANTS,
    "system_prompt_len": _TENANTS,
    "prefix_depth": _TENANTS,
    "zipf": _TENANTS,
    "turns": _SYNTHETIC | {"sharegpt"},
    "think_time": _SYNTHETIC | {"sharegpt"},
    "ignore_eos": _RENDERED,
    "extra_body": _RENDERED,
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
        _RENDERED,
    ),
}
"""Flag -> data sets in which it has an effect."""
_WORKLOADS_OWN = ("prompt", "messages", "max_tokens", "max_completion_tokens")


def idle_flag_warnings(flags: argparse.Namespace, *, bodies: bool) -> tuple[str, ...]:
    """Warnings about flags that have no effect in this run, or that another flag overrides.

    Args:
        bodies: the data set is a trace that has its bodies.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add_workload_flags(parser)
    add_form_flags(parser)
    name = flags.dataset_name
    kind = name if name not in TRACES else _OF_BODIES if bodies else min(_WRITTEN)
    idle = [
        flag
        for flag, used_by in USED_BY.items()
        if kind not in used_by and getattr(flags, flag) != parser.get_default(flag)
    ]
    found = [f"--{flag.replace('_', '-')} has no effect with --dataset-name {name}" for flag in idle]
    if name == "sharegpt":
        if flags.turns not in ("1", "1.0"):
            found.append(f"--turns {flags.turns} asks every question of a recorded conversation, however many it has")
        if flags.random_range_ratio and not flags.output_len:
            found.append("--random-range-ratio has no effect without --output-len: answers are as long as recorded")
    if flags.turns == "1" and flags.think_time != "0" and "think_time" not in idle:
        found.append("--think-time has no effect in conversations of one turn; give --turns")
    found += [
        f"--extra-body sets {field} in every request, whatever the workload asks for"
        for field in _WORKLOADS_OWN
        if flags.extra_body.get(field) is not None and "extra_body" not in idle
    ]
    return tuple(found)
