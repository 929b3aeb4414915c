"""`cloudmatrix plan`: NPUs per pool that a trace needs, found by simulation."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.exit_codes import ExitCode
from loadgen.quantities import Duration
from serving.cli.options import add_block_tokens, add_columns, add_concurrency, add_engine, add_set, configured
from serving.errors import ConfigError
from serving.tools.compilation.build import prefer_compiled

if TYPE_CHECKING:
    from serving.config.engine import ServingMode
    from serving.config.serve import ServeConfig
    from serving.tools.planning.comparison import ComparisonQuestion
    from serving.tools.planning.plan import CapacityPlan
    from serving.tools.planning.planner import PlanQuestion, Progress
    from serving.tools.planning.trace import TraceChoice
    from serving.tools.planning.verdict import PlanTarget

MOST_HEADROOM = 100.0
PREFILL_SIZES = "16,32,64"
DECODE_SIZES = "32,64,128,160,288"
AGGREGATED_SIZES = "16,32,64,128"

DESCRIPTION = """\
Search the split of NPUs between prefill, decode and cache, instance sizes and batch limits, by simulating a trace;
return the cheapest plan that keeps the limits.
"""
EPILOG = """\
questions:
  the least that holds             cloudmatrix plan --config deploy/cloudmatrix384.toml --trace FILE --attainment 0.95
  the best split of 384 NPUs       cloudmatrix plan --config deploy/cloudmatrix384.toml --trace FILE --npus 384
  how much load 384 NPUs carry     cloudmatrix plan --config ... --trace FILE --npus 384 --highest-rate
  how safe the answer is           ... --headroom --losses
  for twice the load               ... --headroom 2
  two pools, or one for both       ... --modes disaggregated,aggregated
  which of two is better           cloudmatrix plan --compare a.toml b.toml --trace FILE

Each answer names the runner-ups and why they lose. --quick gives a first answer in a fraction of the time.
The KV-cache pool has one memory server on each node that a plan fills; --cache-nodes sets another number.
Instances of --modes aggregated prefill and decode: --step-tokens limits their whole step, --losses takes from their
one pool, --prices has one cost of a token, in or out. Their plan.toml has [serving] mode = "aggregated".
Exit code 1: no plan meets the limits; the closest ones are shown.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, metavar="FILE", help="TOML file; its pools are replaced by the plan's")
    source.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="TOML files, simulated as they are: which is better",
    )
    add_set(parser, "simulation.drafts=2")
    add_engine(parser)
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="trace file or ServeGen folder")
    parser.add_argument(
        "--rate", type=float, default=1.0, metavar="X", help="factor on the trace's arrivals (default: 1)"
    )
    add_concurrency(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="first requests of the trace only")
    add_block_tokens(parser)
    add_columns(parser)
    parser.add_argument(
        "--start", type=Duration(), default=0.0, metavar="T", help="start of the used part of the trace"
    )
    parser.add_argument("--duration", type=Duration(), metavar="T", help="length of the stretch (default: to its end)")
    _add_goal(parser)
    _add_choices(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="instead of the configuration's")
    parser.add_argument("--quick", action="store_true", help="use the busiest third of the trace in place of the whole")
    parser.add_argument(
        "--processes", type=int, default=2, metavar="N", help="simulations at a time (default: 2); same answer"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write plan.md, plan.html, plan.json and plan.toml (the best plan) there",
    )
    parser.add_argument(
        "--prices", type=Path, metavar="FILE", help="your prices and watts, as examples/prices.toml: what tokens cost"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _add_goal(parser: argparse.ArgumentParser) -> None:
    goal = parser.add_argument_group("what to keep")
    goal.add_argument(
        "--ttft", type=Duration(above_zero=True), metavar="T", help="time to first token (default: the file's [slo])"
    )
    goal.add_argument(
        "--tpot", type=Duration(above_zero=True), metavar="T", help="time per further token (default: the file's [slo])"
    )
    goal.add_argument(
        "--attainment", type=float, metavar="SHARE", help="share of requests that keep both (default: the file's [slo])"
    )
    question = parser.add_argument_group("what to find")
    question.add_argument(
        "--npus", type=int, metavar="N", help="NPUs at most; alone: the split of them with the highest goodput"
    )
    which = question.add_mutually_exclusive_group()
    which.add_argument("--least", action="store_true", help="the fewest NPUs that hold (default without --npus)")
    which.add_argument("--highest-rate", action="store_true", help="the split that holds at the highest rate")
    question.add_argument(
        "--headroom",
        type=_headroom,
        nargs="?",
        const=True,
        default=False,
        metavar="X",
        help="plan for X times the load: the same requests arrive X times as fast, or X times as many are open at a "
        "time; without X, also how much more load the best plan carries until each SLO breaks",
    )
    question.add_argument(
        "--losses", action="store_true",
        help="also what the best plan keeps when an NPU, a node, an instance is lost at its worst minute",
    )  # fmt: skip


def _add_choices(parser: argparse.ArgumentParser) -> None:
    choices = parser.add_argument_group("what to choose from")
    choices.add_argument(
        "--sizes-prefill", type=_numbers, default=PREFILL_SIZES, metavar="N,N", help=f"NPUs (default: {PREFILL_SIZES})"
    )
    choices.add_argument(
        "--sizes-decode", type=_numbers, default=DECODE_SIZES, metavar="N,N", help=f"NPUs (default: {DECODE_SIZES})"
    )
    choices.add_argument(
        "--modes", type=_modes, default=("disaggregated",), metavar="MODE,MODE", help="disaggregated = prefill and "
        "decode pools; aggregated = instances that do both (default: disaggregated)",
    )  # fmt: skip
    choices.add_argument(
        "--sizes-aggregated", type=_numbers, default="", metavar="N,N",
        help=f"NPUs of instances that do both (default with --modes aggregated: {AGGREGATED_SIZES})",
    )  # fmt: skip
    choices.add_argument(
        "--step-tokens", type=_numbers, default="", metavar="N,N", help="prompt tokens of a prefill step for each NPU, "
        "the preferred one first (default: as configured, and a quarter; of instances that do both, a sixteenth)",
    )  # fmt: skip
    choices.add_argument(
        "--batch", type=_numbers, default="", metavar="N,N", help="sequences for each decode die, the preferred one "
        "first (default: as configured, and what TPOT allows by the cost model)",
    )  # fmt: skip
    choices.add_argument(
        "--attention-tp", type=_numbers, default="", metavar="N,N", help="dies of a decode instance that share their "
        "sequences, the preferred number first (default: as configured)",
    )  # fmt: skip
    choices.add_argument(
        "--expert-dies", type=_counts, default="", metavar="N,N", help="dies of a decode instance that hold experts "
        "only, 0 = every die does both; the preferred number first (default: as configured)",
    )  # fmt: skip
    choices.add_argument(
        "--redundant", type=_counts, default="", metavar="N,N", help="copies of experts beyond one of each in every "
        "instance; with [simulation] routing, slots of each decode rank beyond its share; the preferred number first "
        "(default: as configured)",
    )  # fmt: skip
    choices.add_argument(
        "--cache-nodes", type=int, metavar="N", help="memory servers (default: one on each node that is filled)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compute and show the plan.

    Returns: exit code.
    Raises: ConfigError, TraceError: in one line.
    """
    prefer_compiled()
    from loadgen.terminal import terminal_console
    from serving.terminal import make_folder, table_console
    from serving.tools.planning.comparison import compare
    from serving.tools.planning.files import as_json, show, write_all
    from serving.tools.planning.planner import check, plan
    from serving.tools.planning.trace import opened
    from serving.virtual.report.simulation_console import print_notes

    if arguments.processes < 1:
        raise ConfigError(f"--processes {arguments.processes}: at least 1")
    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit}: at least 1")
    answer: _Answer
    if arguments.compare:
        question = comparison_of(arguments)
        trace, answer = question.trace, partial(compare, question)
    else:
        order = order_of(arguments)
        check(order)
        trace, answer = order.trace, partial(plan, order)
    if arguments.out is not None:
        make_folder(arguments.out)
    stderr = terminal_console(stderr=True)
    print_notes(opened(trace)[0].notes, stderr)
    found = _with_progress(answer, arguments.processes, quiet=arguments.quiet)
    if arguments.json:
        sys.stdout.write(as_json(found).decode())
    else:
        show(found, table_console())
    if arguments.out is not None:
        for path in write_all(found, arguments.out):
            stderr.print(f"wrote {path}", highlight=False)
    return ExitCode.FAILURE if found.best is None else ExitCode.OK


def order_of(arguments: argparse.Namespace) -> "PlanQuestion":
    """The command line as a question.

    Raises: ConfigError.
    """
    from serving.tools.planning.bounds import SearchLimits
    from serving.tools.planning.costs import read_prices
    from serving.tools.planning.plan import Question
    from serving.tools.planning.planner import PlanQuestion

    config = configured(arguments, "plan")
    seed = config.simulation.seed if arguments.seed is None else arguments.seed
    if arguments.cache_nodes is not None and arguments.cache_nodes < 0:
        raise ConfigError(f"--cache-nodes {arguments.cache_nodes}: at least 0")
    question: Question = "goodput" if arguments.npus is not None else "least"
    if arguments.least or arguments.highest_rate:
        question = "least" if arguments.least else "rate"
    together = "aggregated" in arguments.modes
    if arguments.sizes_aggregated and not together:
        raise ConfigError("--sizes-aggregated needs --modes disaggregated,aggregated: alone it has no effect")
    budget = config.cluster.npus if arguments.npus is None else arguments.npus
    return PlanQuestion(
        config=_seeded(config, seed), trace=_trace(arguments, seed), target=_target(arguments, config),
        wanted=SearchLimits(
            arguments.sizes_prefill, arguments.sizes_decode, budget, arguments.step_tokens, arguments.batch,
            arguments.attention_tp, arguments.expert_dies, arguments.redundant, arguments.modes,
            (arguments.sizes_aggregated or _numbers(AGGREGATED_SIZES)) if together else (),
        ),
        question=question, cache_nodes=arguments.cache_nodes, quick=arguments.quick,
        headroom=arguments.headroom is True, losses=arguments.losses,
        load_factor=1.0 if isinstance(arguments.headroom, bool) else arguments.headroom,
        prices=None if arguments.prices is None else read_prices(arguments.prices),
    )  # fmt: skip


def comparison_of(arguments: argparse.Namespace) -> "ComparisonQuestion":
    """The command line as a question about configurations.

    Raises: ConfigError, also for flags of a search, which would have no effect.
    """
    from serving.tools.planning.comparison import ComparisonQuestion
    from serving.tools.planning.costs import read_prices

    searching = ("npus", "least", "highest_rate", "quick", "sizes_prefill", "sizes_decode", "step_tokens", "batch")
    others = ("attention_tp", "expert_dies", "redundant", "cache_nodes", "modes", "sizes_aggregated")
    usual: dict[str, tuple[object, ...]] = {
        "sizes_prefill": _numbers(PREFILL_SIZES), "sizes_decode": _numbers(DECODE_SIZES), "modes": ("disaggregated",)
    }  # fmt: skip
    for name in (*searching, *others):
        if (value := getattr(arguments, name)) and value != usual.get(name):
            raise ConfigError(f"--{name.replace('_', '-')} is for a search; --compare uses the pools of the files")
    if not isinstance(arguments.headroom, bool):
        raise ConfigError("--headroom with a number is for a search; --compare uses the load as it is, see --rate")
    if len(arguments.compare) < 2:
        raise ConfigError(f"--compare {arguments.compare[0]}: name at least two files")
    found = []
    for file in arguments.compare:
        config = configured(argparse.Namespace(**{**vars(arguments), "config": file}), "simulate")
        seed = config.simulation.seed if arguments.seed is None else arguments.seed
        found.append((_name_of(file, arguments.compare), _seeded(config, seed)))
    first = found[0][1]
    return ComparisonQuestion(
        tuple(found), _trace(arguments, first.simulation.seed), _target(arguments, first), arguments.headroom,
        arguments.losses, None if arguments.prices is None else read_prices(arguments.prices),
    )  # fmt: skip


def _name_of(file: Path, among: Sequence[Path]) -> str:
    return file.stem if sum(one.stem == file.stem for one in among) == 1 else str(file)


def _trace(arguments: argparse.Namespace, seed: int) -> "TraceChoice":
    from serving.tools.planning.trace import TraceChoice

    return TraceChoice(
        arguments.trace, arguments.rate, arguments.limit, arguments.start, arguments.duration, seed,
        arguments.block_tokens, arguments.concurrency, arguments.columns,
    )  # fmt: skip


def _target(arguments: argparse.Namespace, config: "ServeConfig") -> "PlanTarget":
    from serving.tools.planning.verdict import PlanTarget

    return PlanTarget(
        config.slo.ttft_s if arguments.ttft is None else arguments.ttft,
        config.slo.tpot_s if arguments.tpot is None else arguments.tpot,
        config.slo.attainment if arguments.attainment is None else arguments.attainment,
    )


def _seeded(config: "ServeConfig", seed: int) -> "ServeConfig":
    from dataclasses import replace

    return replace(config, simulation=replace(config.simulation, seed=seed))


def _with_progress(answer: "_Answer", processes: int, *, quiet: bool) -> "CapacityPlan":
    """Compute the answer, showing the latest probe."""
    from loadgen.progress_bar import ProgressBar
    from loadgen.report import numbers

    with ProgressBar("reading the trace", quiet=quiet) as bar:
        count = screened = 0

        def progress(probe: "PlanProbe", verdict: "PlanVerdict") -> None:
            nonlocal count, screened
            count, screened = count + (not verdict.screened), screened + verdict.screened
            part = "whole trace" if probe.whole else "busiest stretch"
            rate = "" if probe.rate == 1 else f", rate x {probe.rate:.3g}"
            rate += "" if probe.loss is None else f", {probe.loss.unit} of {probe.loss.pool} lost"
            bar.update(
                count + screened,
                f"{screened} screened, {count} simulated; {probe.candidate.label} on the {part}{rate}: "
                f"{numbers.share(verdict.attainment)} within the limits",
                what="planning",
            )

        return answer(processes=processes, progress=progress)


def _headroom(text: str) -> float:
    """A factor on the load, of at least 1."""
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= MOST_HEADROOM:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor from 1 to {MOST_HEADROOM:g}, such as 2")
    return factor


def _counts(text: str) -> tuple[int, ...]:
    """Numbers of a list such as "0,96", each once."""
    return _numbers(text, least=0)


def _modes(text: str) -> tuple["ServingMode", ...]:
    """Modes of a list such as "disaggregated,aggregated", each once."""
    known: dict[str, ServingMode] = {"disaggregated": "disaggregated", "aggregated": "aggregated"}
    given = [part.strip() for part in text.split(",") if part.strip()]
    if not given or not all(one in known for one in given):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of disaggregated and aggregated")
    return tuple(dict.fromkeys(known[one] for one in given))


def _numbers(text: str, least: int = 1) -> tuple[int, ...]:
    """Numbers of a list such as "16,32", each once."""
    try:
        values = tuple(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 16,32") from None
    if any(value < least for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be at least {least}")
    return values


if TYPE_CHECKING:
    from typing import Protocol

    from serving.tools.planning.verdict import PlanProbe, PlanVerdict

    class _Answer(Protocol):
        def __call__(self, *, processes: int, progress: Progress) -> CapacityPlan: ...
