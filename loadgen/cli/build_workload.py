"""From flags to what is sent: the workload, its text, its lengths, and how clients behave."""

import argparse
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.cli.workload_flags import TRACES
from loadgen.endpoint import Backend, Endpoint
from loadgen.errors import UsageError
from loadgen.trace import Reading, RecordedTrace, Trace, open_trace
from loadgen.workload.calibrate import calibrate
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.datasets.traces import TraceWorkload
from loadgen.workload.lengths import Lengths, lengths, parse, parse_times
from loadgen.workload.plan_jobs import Behaviours
from loadgen.workload.ports import TokenCounter, Workload
from loadgen.workload.sessions import Cycled
from loadgen.workload.words import PromptKind, Words

SYNTHETIC = ("random", "shared-prefix", "text")
DEFAULT_OUTPUT = "64"


@dataclass(frozen=True)
class ModelFacts:
    """Facts about the model under test that prompts need.

    Attributes:
        counter: its tokenizer; None = lengths are estimates. max_tokens: longest prompt plus output; None = unknown.
        chat_overhead_tokens: tokens that its chat template adds to a turn; 0 for completions.
    """

    endpoint: Endpoint
    counter: TokenCounter | None
    max_tokens: int | None
    chat_overhead_tokens: int = 0

    @property
    def room_tokens(self) -> int | None:
        """Longest text plus output."""
        return None if self.max_tokens is None else self.max_tokens - self.chat_overhead_tokens


@dataclass(frozen=True)
class Content:
    """Content of requests: a workload and its parts.

    Attributes:
        timed: it has its own times. endless: it never ends. bodies: its requests are sent as recorded.
        fit: counts what had to be cut.
    """

    workload: Workload
    timed: bool
    endless: bool
    exact_lengths: bool
    bodies: bool = False
    fit: Fit = field(default_factory=Fit)


def check_workload_flags(flags: argparse.Namespace) -> None:
    """Reject invalid flags before contacting the server.

    Raises: UsageError.
    """
    name, path = flags.dataset_name, flags.dataset_path
    if name not in ("random", "shared-prefix") and path is None:
        raise UsageError(f"--dataset-name {name} needs --dataset-path")
    if path is not None and name != "text" and name not in ("random", "shared-prefix") and not Path(path).exists():
        raise UsageError(f"--dataset-path {path}: no such file or folder")
    if flags.prompt_kind == "ids" and flags.backend in ("openai-chat", "chat"):
        raise UsageError("--prompt-kind ids needs the completions endpoint: --backend openai")
    for text in (flags.input_len, flags.output_len or DEFAULT_OUTPUT, flags.turns):
        parse(text)
    parse_times(flags.think_time)
    build_behaviours(flags, malformations=1)


def ignores_eos(flags: argparse.Namespace) -> bool:
    """Whether responses must have the planned length: by default, yes if the plan specifies one."""
    if flags.ignore_eos is not None:
        return bool(flags.ignore_eos)
    return flags.dataset_name != "custom" or flags.output_len is not None


def build_behaviours(flags: argparse.Namespace, *, malformations: int) -> Behaviours:
    """Shares of clients that do not behave.

    Raises: UsageError if they sum to more than 1.
    """
    return Behaviours(
        disconnect_share=flags.disconnect_share,
        disconnect_within_s=flags.disconnect_after,
        slow_reader_share=flags.slow_reader_share,
        slow_reader_bytes_per_s=flags.slow_reader_bytes,
        timeout_share=flags.timeout_share,
        give_up_after_s=flags.timeout_after,
        malformed_share=flags.malformed_share,
        malformations=malformations,
    )


def build_words(flags: argparse.Namespace, model: ModelFacts) -> Words:
    """The words that prompts are made of, found once a command.

    Raises: ServerError if the server cannot count tokens; UsageError for a vocabulary that is too small.
    """
    chat = model.endpoint.backend is Backend.CHAT
    kind = PromptKind(flags.prompt_kind)
    return calibrate(model.counter, kind=kind, chat=chat, vocabulary_size=flags.vocab_size)


def build_content(flags: argparse.Namespace, model: ModelFacts, words: Words, seed: int) -> Content:
    """The workload that the flags describe, for one run.

    Args:
        seed: of the run. It salts the words, so that also texts which a data set fixes (blocks with an id) are new to
            the server in every run that has another seed.
    Raises: UsageError, TraceFormatError for flags and files.
    """
    name = flags.dataset_name
    chat = model.endpoint.backend is Backend.CHAT
    words = dataclasses.replace(words, salt=f"{seed}:{flags.cache_bust or ''}")
    if name in SYNTHETIC:
        return Content(_sessions(flags, model, words, chat), timed=False, endless=True, exact_lengths=words.exact)
    fit = Fit(flags.length_scale, model.room_tokens)
    workload: Workload
    bodies = False
    if name in TRACES:
        trace = _trace(flags, seed)
        bodies = isinstance(trace, RecordedTrace)
        workload = TraceWorkload(trace, words, fit, flags.model if bodies else None)
    else:
        workload = _data_set(flags, model, fit)
    if flags.cycle:
        workload = Cycled(workload)
    return Content(workload, name in TRACES, flags.cycle, words.exact, bodies, fit)


def _sessions(flags: argparse.Namespace, model: ModelFacts, words: Words, chat: bool) -> Workload:
    """Synthetic prompts as conversations."""
    from loadgen.workload.sessions import Sessions
    from loadgen.workload.shared_prefix import SharedPrefix
    from loadgen.workload.source import RandomPrompts, Source
    from loadgen.workload.text_files import TextFiles

    input_tokens = lengths(flags.input_len, range_ratio=flags.random_range_ratio)
    source: Source
    if flags.dataset_name == "shared-prefix":
        source = SharedPrefix(
            words,
            input_tokens,
            tenants=flags.tenants,
            system_prompt_tokens=flags.system_prompt_len,
            depth=flags.prefix_depth,
            zipf=flags.zipf,
            system_role=chat,
        )
    elif flags.dataset_name == "text":
        source = TextFiles(tuple(map(Path, flags.dataset_path.split(","))), words, input_tokens, model.counter)
    else:
        source = RandomPrompts(words, input_tokens, flags.random_prefix_len, system_role=chat)
    return Sessions(
        source,
        _output_lengths(flags),
        turns=lengths(flags.turns),
        think_s=parse_times(flags.think_time),
        max_model_tokens=model.max_tokens,
        turn_overhead_tokens=model.chat_overhead_tokens,
    )


def _output_lengths(flags: argparse.Namespace) -> Lengths:
    """Lengths of responses.

    Raises: UsageError as `lengths`.
    """
    return lengths(flags.output_len or DEFAULT_OUTPUT, range_ratio=flags.random_range_ratio)


def _trace(flags: argparse.Namespace, seed: int) -> Trace:
    """The trace, generating only the requested time range.

    Raises: UsageError, TraceFormatError.
    """
    end_s = math.inf if flags.trace_to is None else flags.trace_to
    start_s = flags.trace_from or 0.0
    reading = Reading(flags.block_tokens, start_s=start_s, end_s=end_s, seed=seed, columns=flags.columns)
    return open_trace(Path(flags.dataset_path), reading)


def _data_set(flags: argparse.Namespace, model: ModelFacts, fit: Fit) -> Workload:
    """A workload of texts that are read from files."""
    from loadgen.workload.datasets.custom import Custom
    from loadgen.workload.datasets.fit import Measure
    from loadgen.workload.datasets.sharegpt import ShareGpt

    path, measure = Path(flags.dataset_path), Measure(model.counter)
    if flags.dataset_name == "custom":
        return Custom(path, _output_lengths(flags), measure, fit)
    return ShareGpt(
        path,
        measure,
        _output_lengths(flags) if flags.output_len else None,
        whole=flags.turns not in ("1", "1.0"),
        think_s=parse(flags.think_time),
        fit=fit,
    )
