"""Common parts of all runs of one command, made ready once: server, tokenizer, content, SLOs."""

import argparse
import contextlib
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console

from loadgen.cli.build_endpoint import build_endpoint
from loadgen.cli.build_load import LoadSchedule, build_load
from loadgen.cli.build_workload import Content, ModelFacts, build_behaviours, build_content, build_words, ignores_eos
from loadgen.cli.run_flags import add_form_flags
from loadgen.cli.workload_flags import DATASETS, TRACES, add_workload_flags
from loadgen.client.malformed import MALFORMATIONS
from loadgen.endpoint import Backend, Endpoint
from loadgen.errors import UsageError
from loadgen.metrics.goodput import parse_slo
from loadgen.server import probe, tokenize
from loadgen.workload.plan_jobs import Behaviours
from loadgen.workload.ports import TokenCounter
from loadgen.workload.words import Words

_OF_STREAMS = frozenset({"ttft", "ttfo", "tpot", "itl"})


@dataclass(frozen=True)
class Bench:
    """One command's setting.

    Attributes:
        content: of the first run, for what all have in common.
        seed: of the first run; later ones count up, so that no prompt is ever sent twice by accident.
        slo: metric -> limit [s]; empty without SLOs. warnings: what every run's reader must know.
        console: where progress and tables go.
    """

    flags: argparse.Namespace
    endpoint: Endpoint
    model: ModelFacts
    words: Words
    content: Content
    behaviours: Behaviours
    slo: dict[str, float]
    seed: int
    console: Console
    warnings: tuple[str, ...]

    def content_of(self, seed: int) -> Content:
        """Content of one run's requests.

        Raises: UsageError, TraceFormatError.
        """
        return build_content(self.flags, self.model, self.words, seed)

    def load(self, *, rate: float | None = None, slots: int | None = None) -> LoadSchedule:
        """The load of one run; a sweep gives the rate or the slots.

        Raises: UsageError.
        """
        content = self.content
        return build_load(self.flags, timed=content.timed, endless=content.endless, rate=rate, slots=slots)

    def settings(self) -> dict[str, object]:
        """Every flag with its value, for the result; keys of the user are left out."""
        hidden = ("command", "api_key", "header")
        return {name: _plain(value) for name, value in vars(self.flags).items() if name not in hidden}

    def command(self) -> str:
        """The command as typed, without keys."""
        return shlex.join(["loadgen", *without_keys(sys.argv[1:])])


@contextlib.contextmanager
def open_bench(flags: argparse.Namespace, console: Console) -> Iterator[Bench]:
    """Query the server's model and prepare everything for the run.

    Raises: ServerError and its kin if the server cannot be used; UsageError, TraceFormatError for flags and files.
    Effects: requests to /v1/models and /tokenize; closes that connection at the end.
    """
    endpoint = build_endpoint(flags, ignore_eos=ignores_eos(flags))
    slo = _slo(flags)
    facts = probe.check(endpoint, ready_timeout_s=flags.ready_check_timeout_sec)
    endpoint = msgspec.structs.replace(endpoint, model=facts.model)
    counter, overhead, closing = _tokenizer(flags, endpoint)
    with contextlib.closing(closing):
        longest = flags.max_model_len or facts.max_model_len
        seed = secrets.randbits(31) if flags.seed is None else flags.seed
        model = ModelFacts(endpoint, counter, longest, overhead)
        words = build_words(flags, model)
        content = build_content(flags, model, words, seed)
        yield Bench(
            flags=flags,
            endpoint=endpoint,
            model=model,
            words=words,
            content=content,
            behaviours=build_behaviours(flags, malformations=len(MALFORMATIONS)),
            slo=slo,
            seed=seed,
            console=console,
            warnings=(
                *facts.warnings,
                *_length_warnings(content, counter),
                *_choice_warnings(flags),
                *idle_flag_warnings(flags, bodies=content.bodies),
            ),
        )


def _slo(flags: argparse.Namespace) -> dict[str, float]:
    """The limits of `--slo`, by metric.

    Raises: UsageError for a malformed limit, or a metric that this run does not measure.
    """
    slo = parse_slo(flags.slo) if flags.slo else {}
    of_streams = [name for name in slo if name in _OF_STREAMS]
    if of_streams and not flags.stream:
        raise UsageError(f"--slo {of_streams[0]} needs a stream; with --no-stream there is only e2e")
    return slo


def without_keys(words: Sequence[str]) -> list[str]:
    """The words of a command with `...` in place of keys and of the values of header lines."""
    shown, flag = [], ""
    for word in words:
        if word.startswith("-"):
            flag, equals, value = word.partition("=")
            shown.append(f"{flag}={_hidden(flag, value)}" if equals else flag)
        else:
            shown.append(_hidden(flag, word))
    return shown


def _hidden(flag: str, value: str) -> str:
    if flag == "--header":
        return f"{value.partition('=')[0]}=..."
    return "..." if flag == "--api-key" else value


class _Closing:
    """Context that calls an optional `close` on exit."""

    def __init__(self, close: Callable[[], None] | None = None) -> None:
        self._close = close

    def close(self) -> None:
        if self._close:
            self._close()


def _tokenizer(flags: argparse.Namespace, endpoint: Endpoint) -> tuple[TokenCounter | None, int, _Closing]:
    """The tokenizer, the tokens that a chat template adds to a turn, and the objects to close.

    Raises: UsageError if a local one cannot be read; ServerError.
    """
    if flags.tokenizer == "none":
        return None, 0, _Closing()
    if flags.tokenizer != "server":
        from pathlib import Path

        from loadgen.workload.local_tokenizer import open_tokenizer

        return open_tokenizer(Path(flags.tokenizer)), 0, _Closing()
    counter = tokenize.connect(endpoint)
    if counter is None:
        return None, 0, _Closing()
    overhead = counter.chat_overhead() if endpoint.backend is Backend.CHAT else 0
    return counter, overhead or 0, _Closing(counter.close)


def _length_warnings(content: Content, counter: TokenCounter | None) -> tuple[str, ...]:
    """Warnings for lengths that are not exact."""
    if content.exact_lengths:
        return ()
    if counter is None:
        return (
            "prompt lengths are estimates (about 1.3 tokens a word): the server has no /tokenize; give --tokenizer",
        )
    return ("prompt lengths are estimates: no words that are one token each were found in this tokenizer",)


def _choice_warnings(flags: argparse.Namespace) -> tuple[str, ...]:
    """Warnings for requests with several choices, whose chunks arrive interleaved."""
    many = flags.extra_body.get("n")
    if not isinstance(many, int) or many < 2:
        return ()
    return (f"n = {many}: the answers of a request are counted as one, so TPOT and ITL are not those of one stream",)


def check_series(flags: argparse.Namespace) -> None:
    """Reject contradictory flags of a series before contacting the server.

    Raises: UsageError.
    """
    if flags.sweep and flags.find_max:
        raise UsageError("--sweep and --find-max contradict each other; choose one")
    if flags.sweep_values and not flags.sweep:
        raise UsageError("--sweep-values without --sweep has no effect; give --sweep rate or --sweep concurrency")
    if flags.within and not flags.find_max:
        raise UsageError("--within without --find-max has no effect; give --find-max rate or --find-max concurrency")
    if flags.within and flags.duration:
        raise UsageError("--within decides how long probes take; leave out --duration")
    if flags.find_max and not flags.slo:
        raise UsageError("--find-max needs SLOs to hold: --slo ttft=500ms,tpot=50ms")
    varied = flags.sweep or flags.find_max
    if varied == "rate" and (flags.request_rate or flags.rate_steps or flags.ramp_up_strategy):
        raise UsageError("the rate is what is varied; leave out --request-rate, --rate-steps and the ramp")
    if varied == "rate" and flags.arrival == "trace":
        raise UsageError("a sweep of the rate draws its own times; leave out --arrival trace")
    if varied == "concurrency" and (flags.request_rate or flags.rate_steps or flags.ramp_up_strategy):
        raise UsageError("a sweep of the concurrency is a closed loop; leave out rates")
    if varied == "concurrency" and flags.concurrency:
        raise UsageError("the concurrency is what is varied; leave out --concurrency")


def _plain(value: object) -> object:
    """A flag's value as JSON has it."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and value == float("inf"):
        return "inf"
    return value if isinstance(value, str | int | float | bool | dict | None) else str(value)


# Flags that the chosen workload does not use: named in the result, so that none is ignored without a word.

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
        bodies: the data set is a trace that contains complete request bodies.
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
