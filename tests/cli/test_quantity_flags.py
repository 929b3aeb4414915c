"""One grammar of durations and sizes for every flag of both tools and every key, checked by walking the parsers.

A flag that takes a plain number must be named in `PLAIN`, so that a new duration cannot use another grammar.
"""

import argparse
import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from hardware.faults import Fault, FaultRates
from loadgen.cli import values
from loadgen.cli.main import COMMANDS
from loadgen.errors import UsageError
from loadgen.metrics.goodput import parse_slo
from loadgen.quantities import Duration, Size
from loadgen.workload.lengths import parse_times
from serving.cli import command_parser
from serving.config.key import KeySpec, key_spec
from serving.config.serve import ServeConfig
from serving.config.value import convert, with_unit
from serving.errors import ConfigError
from serving.faults.scenario import Scenario

COUNTS = frozenset(
    """
    acceptance attainment attention-tp batch burstiness cache-nodes chunk concurrency context dies domains drafts
    expert expert-dies expert-ranks expert-tp fault-rate frequency-penalty head-tp input-len last layer length limit
    max-model-len max-tokens min-p npus num-fewshot num-prompts num-warmups output output-len poisson port prefill
    prefix-depth presence-penalty processes prompt rank ramp-up-end-rps ramp-up-start-rps random-prefix-len rate-scale
    repeat repeats repetition-penalty ranks redundant replicas request-rate reuse seed sizes-aggregated sizes-decode
    sizes-prefill step-tokens stride supernodes sweep-points sweep-values system-prompt-len temperature tenants threads
    tokens top-k top-p turns vocab-size volume weight workers zipf max-probes probe-requests block-tokens streams rate
    length-scale metric-percentiles slowest failed resumed newest
    """.split()
)
"""Numbers that are neither durations nor sizes: counts, rates, weights, and lengths in tokens."""
WORDS = frozenset(
    """
    address api-key cache-bust columns config dashboard dataset-path device draft-model endpoint engine extra-body
    faults fit flood-api-key group header host judge label message metadata metrics-url model modes name namespace only
    out part percentile-metrics pids pool prices rank reference request result-filename set source system target token
    tokenizer trace url weights
    """.split()
)
"""Names, addresses, files."""
COMPOSED = {"rate-steps": "2:{},8:1h30m", "slo": "ttft={},tpot=50ms", "think-time": "uniform:{}-2d"}
"""Flags whose value holds durations among other things."""
TYPES_OF_NO_QUANTITY = (Path, values.share)
GOOD = ("500ms", "90s", "1min", "10m", "1h30m", "1d", "2 min 05 s")


def value_flags() -> Iterator[tuple[str, argparse.Action]]:
    """Every flag and argument of `cloudmatrix` and `loadgen` that takes a value, with its command."""
    yield from _walk(command_parser())
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"loadgen {name}")
        importlib.import_module(f"loadgen.cli.{name}_command").add_flags(parser)
        yield from _walk(parser)


def _walk(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _walk(below)
        elif action.nargs != 0 and not action.choices:
            yield parser.prog, action


def name_of(action: argparse.Action) -> str:
    longest = next((one for one in action.option_strings if one.startswith("--")), action.dest)
    return longest.removeprefix("--")


FLAGS = list(value_flags())
QUANTITIES = [(prog, one) for prog, one in FLAGS if isinstance(one.type, Duration | Size)]


def test_every_flag_with_a_value_is_a_quantity_or_named_here() -> None:
    found = {name_of(one) for _, one in FLAGS if one.type not in TYPES_OF_NO_QUANTITY}
    quantities = {name_of(one) for _, one in QUANTITIES}
    assert found - quantities - COUNTS - WORDS - set(COMPOSED) == set(), "give it Duration or Size, or name it here"
    assert (COUNTS | WORDS) - {name_of(one) for _, one in FLAGS} == set(), "no such flag any more"


@pytest.mark.parametrize(("prog", "action"), QUANTITIES, ids=lambda one: one if isinstance(one, str) else name_of(one))
def test_a_flag_speaks_the_grammar(prog: str, action: argparse.Action) -> None:
    kind, flag = action.type, action.option_strings[0]
    assert isinstance(kind, Duration | Size)
    parser = argparse.ArgumentParser(prog=prog, exit_on_error=False)
    parser._add_action(action)
    good = GOOD if isinstance(kind, Duration) else ("512MiB", "1.5GiB", "2GiB 512MiB")
    for text in good:
        assert vars(parser.parse_args([flag, text]))[action.dest] > 0
    what = "duration" if isinstance(kind, Duration) else "size"
    with pytest.raises(argparse.ArgumentError, match=f"'soon' is no {what}: write a number and a unit of .* e.g. "):
        parser.parse_args([flag, "soon"])
    if kind.above_zero:
        with pytest.raises(argparse.ArgumentError, match=f"'0' is no {what} above 0, e.g. "):
            parser.parse_args([flag, "0"])


@pytest.mark.parametrize("text", GOOD)
def test_values_with_durations_in_them_speak_it_too(text: str) -> None:
    assert values.rate_steps(COMPOSED["rate-steps"].format(text))[1] == (8.0, 5400.0)
    assert parse_slo([COMPOSED["slo"].format(text)])["tpot"] == 0.05
    assert parse_times(COMPOSED["think-time"].format(text)).least >= 0


def test_the_same_words_wherever_a_duration_stands() -> None:
    words = r"'soon' is no duration: write a number and a unit of us, ms, s, min \(or m\), h or d, or several, e\.g\. "
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        values.rate_steps(COMPOSED["rate-steps"].format("soon"))
    with pytest.raises(UsageError, match=words):
        parse_slo([COMPOSED["slo"].format("soon")])
    with pytest.raises(UsageError, match=words):
        parse_times(COMPOSED["think-time"].format("soon"))
    with pytest.raises(ConfigError, match=words):
        with_unit("small.toml: [gateway] drain_s", "drain_s", "soon")


def number_keys(root: type[Any], above: str = "") -> Iterator[tuple[str, Any, KeySpec]]:
    """Every numeric key below a section: name with its section, type, description."""
    hints = get_type_hints(root)
    for field in fields(root):
        hint = get_args(hints[field.name])[0] if get_origin(hints[field.name]) is tuple else hints[field.name]
        if hint in (Fault, FaultRates):
            continue  # not sections of keys: `hardware.faults.rates` reads them
        if is_dataclass(hint) and isinstance(hint, type):
            yield from number_keys(hint, field.name)
        elif hint in (int, float):
            yield f"{above}.{field.name}", hint, key_spec(field)


KEYS = [*number_keys(ServeConfig), *number_keys(Scenario)]
UNITS = {"[s]": ("_s", "ms"), "[MiB]": ("_mib", "MiB"), "[KiB]": ("_kib", "KiB"), "[bytes]": ("_bytes", "B")}
"""Unit in a key's documentation -> how its name ends, a unit to try."""


@pytest.mark.parametrize(("key", "hint", "spec"), KEYS, ids=[key for key, _, _ in KEYS])
def test_a_key_that_counts_a_unit_says_so_and_takes_a_text_with_one(key: str, hint: type, spec: KeySpec) -> None:
    marks = [mark for mark in UNITS if mark in spec.doc]
    name = key.rpartition(".")[2]
    if not marks:
        assert not re.search(r"(?<!per)_s$|_(kib|mib|gib|bytes)$", name), f"{key} says no unit in its documentation"
        return
    ending, unit = UNITS[marks[0]]
    assert name.endswith(ending)
    low = spec.low or 0
    number = int(max(1, low)) * (1000 if unit == "ms" else 1)
    value = convert(key, with_unit(key, name, f"{number}{unit}"), hint, spec)
    assert value == hint(max(1, int(low)))
    assert type(value) is hint
    with pytest.raises(ConfigError, match=r"is no (duration|size): write .* or a number without quotes"):
        with_unit(key, name, "600")


def test_rates_are_no_durations() -> None:
    assert with_unit("", "rate_per_s", "2s") == "2s"
    assert with_unit("", "pool_gb_per_s", "2s") == "2s"
