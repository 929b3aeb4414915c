"""`cloudmatrix simulate`: a trace on a supernode, in virtual time."""

import argparse
import atexit
import gc
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.quantities import Duration
from serving.cli.options import add_block_tokens, add_columns, add_concurrency, add_engine, add_set, configured
from serving.tools.compilation.build import prefer_compiled

if TYPE_CHECKING:
    from hardware.cost import CostModel, PredictedStep
    from hardware.faults import Fault
    from serving.config.serve import ServeConfig
    from serving.faults.scenario import CommandConfig
    from serving.virtual.result import SimResult
    from serving.virtual.workload.columns import RequestStream

DESCRIPTION = """\
Run a trace of requests on simulated supernodes. Gateway, scheduler and KV-cache pool are the live system's code; times
come from the cost model (`cloudmatrix cost --explain`). Reads the traces that `loadgen` reads: JSON lines of Mooncake,
Qwen-Bailian, kv-cache-tester, TraceLab and `loadgen trace`, CSV of Azure, BurstGPT or with
arrival_s,prompt_tokens,output_tokens, and ServeGen folders; or generates requests with --poisson.
"""
EPILOG = """\
Examples:
  cloudmatrix simulate --config deploy/cloudmatrix384.toml --trace conversation_trace.jsonl --out run1
  cloudmatrix simulate --config deploy/cloudmatrix384.toml --trace trace.jsonl --rate 4 --supernodes 2
  cloudmatrix simulate --config deploy/cloudmatrix384.toml --poisson 20 --duration 600 --prompt 4096 --output 256
  cloudmatrix simulate --config deploy/cloudmatrix384.toml --trace trace.jsonl --fault-rate 10 --seed 7
--faults reads the scenario files of `cloudmatrix chaos`: kill, freeze, slow_link, node, npu, straggler and more. Kinds
that virtual time does not support are refused (serving/tools/chaos/README.md lists every kind); a scenario's
[load] and [scenario] config are for chaos. [[command]] resizes and switches ranks (serving/virtual/README.md).
--out writes report.html and result.json; the same seed gives the same bytes. Progress is printed on stderr.
"""


_TRACE_FLAGS = {
    "start": 0.0,
    "limit": None,
    "rate": 1.0,
    "volume": 1.0,
    "length": 1.0,
    "repeat": 1,
    "block_tokens": None,
    "columns": None,
}
_POISSON_FLAGS = {"prompt": 4096, "output": 256, "reuse": 0.0}
"""Flags of only one kind of load, with their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="topology, e.g. deploy/cloudmatrix384.toml"
    )
    add_set(parser, "simulation.drafts=2")
    add_engine(parser)
    load = parser.add_argument_group("load")
    source = load.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", metavar="FILE", help="trace file, or folder of a ServeGen model")
    source.add_argument("--poisson", type=float, metavar="RATE", help="generate requests at this mean rate per second")
    load.add_argument("--duration", type=Duration(), metavar="T", help="how much of the trace to run, e.g. 90s, 10min")
    load.add_argument("--start", type=Duration(), default=0.0, metavar="T", help="start at this time of the trace")
    load.add_argument("--limit", type=int, metavar="N", help="at most N requests (conversations of agents)")
    load.add_argument(
        "--rate", type=float, default=1.0, metavar="X", help="run the trace X times as fast (not agents' pauses)"
    )
    add_concurrency(load)
    load.add_argument("--volume", type=float, default=1.0, metavar="X", help="X times a ServeGen folder's requests")
    load.add_argument("--length", type=float, default=1.0, metavar="X", help="prompts and answers X times as long")
    add_block_tokens(load)
    add_columns(load)
    load.add_argument("--repeat", type=int, default=1, metavar="N", help="run it N times, each with other prefixes")
    load.add_argument("--prompt", type=int, default=4096, metavar="N", help="with --poisson: prompt tokens (4096)")
    load.add_argument("--output", type=int, default=256, metavar="N", help="with --poisson: answer tokens (256)")
    load.add_argument(
        "--reuse",
        type=float,
        default=0.0,
        metavar="X",
        help="with --poisson: share of prompts seen before",
    )
    system = parser.add_argument_group("system")
    system.add_argument("--supernodes", type=int, metavar="N", help="equal supernodes that share the requests")
    faults = system.add_mutually_exclusive_group()
    faults.add_argument(
        "--faults",
        metavar="FILE",
        help="scenario, as for `cloudmatrix chaos`; drawn for --duration or the file's own; first supernode",
    )
    faults.add_argument("--fault-rate", type=float, metavar="X", help="random faults, X times as often as published")
    system.add_argument("--seed", type=int, metavar="N", help="random seed, in place of the file's")
    run = parser.add_argument_group("run and output")
    run.add_argument("--processes", type=int, metavar="N", help="simulate N supernodes in parallel, one per core")
    run.add_argument("--stop", type=Duration(above_zero=True), metavar="T", help="end at this virtual time")
    run.add_argument("--check", action="store_true", help="verify at the end that every ledger balances")
    run.add_argument("--out", metavar="DIR", help="write report.html and result.json there")
    run.add_argument("--requests", action="store_true", help="with a row for each request in result.json")
    run.add_argument("--json", action="store_true", help="print result.json instead of the summary")
    run.add_argument("--interpreted", action="store_true", help="run the sources, even if they have been compiled")
    run.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, and show or write the result.

    Raises: ConfigError, TraceError in one line.
    """
    if not arguments.interpreted:
        prefer_compiled()
    from loadgen.terminal import terminal_console
    from serving.cli.simulate_progress import SimulationProgress
    from serving.config.rank_checks import roles_as_dies
    from serving.errors import ConfigError
    from serving.terminal import make_folder, table_console
    from serving.virtual.capacity import length_limit, lengths_warning
    from serving.virtual.report.latencies import Slo
    from serving.virtual.report.result_json import result_json, write_json
    from serving.virtual.report.simulation_console import print_notes, print_speed, print_summary
    from serving.virtual.report.simulation_page import write_page
    from serving.virtual.report.summary import summarize
    from serving.virtual.shards import Plan, simulate_supernodes
    from serving.virtual.simulation import cost_model

    _check(arguments)
    if arguments.out:
        make_folder(Path(arguments.out))
    config = _with_flags(configured(arguments, "simulate"), arguments)
    count = config.simulation.supernodes
    opened = partial(open_shard, vars(arguments), config.simulation.seed, config.engine.block_tokens)
    whole = opened(0, 1)
    ran = roles_as_dies(config)
    cost = cost_model(ran)
    stderr = terminal_console(stderr=True)
    limit = length_limit(ran, cost)
    if arguments.poisson is not None and arguments.prompt >= limit.tokens:
        raise ConfigError(f"--prompt {arguments.prompt}: below {limit.tokens} tokens ({limit.reason})")
    if warning := lengths_warning(whole, limit):
        stderr.print(f"warning: {warning}", markup=False, highlight=False, soft_wrap=True)
    faults, commands = _faults(arguments, config, whole)
    shards = opened if count > 1 else partial(_only, whole)
    plan = Plan(config, shards, faults, _step_s(whole), arguments.stop, arguments.check, commands)
    processes = arguments.processes or min(count, len(os.sched_getaffinity(0)))
    with SimulationProgress(_requests(whole), whole.duration_s, count, quiet=arguments.quiet) as progress:
        result = simulate_supernodes(plan, whole.name, processes=processes, progress=progress.tell)
    slo = Slo(config.slo.ttft_s, config.slo.tpot_s)
    summary = summarize(result, slo)
    if arguments.out:
        folder = Path(arguments.out)
        write_json(folder / "result.json", result, summary, requests=arguments.requests)
        write_page(folder / "report.html", result, slo, step_cost=_typical_step(ran, cost, result))
    if arguments.json:
        sys.stdout.buffer.write(result_json(result, summary, requests=arguments.requests))
    else:
        print_summary(result, summary, table_console())
    print_notes(whole.notes, stderr)
    print_speed(result, stderr)
    if arguments.out:
        stderr.print(f"wrote {folder / 'report.html'} and result.json", highlight=False, soft_wrap=True)
    atexit.register(gc.freeze)  # otherwise the process would end with a search for cycles, up to 5 % of the run time
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Reject impossible numbers, and flags without effect.

    Raises: ConfigError.
    """
    from serving.errors import ConfigError

    for name in ("supernodes", "processes", "limit", "repeat", "concurrency"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: at least 1")
    if arguments.concurrency is not None and arguments.rate != _TRACE_FLAGS["rate"]:
        raise ConfigError("--rate is for an open loop; with --concurrency it has no effect")
    if not 0 <= arguments.reuse <= 1:
        raise ConfigError(f"--reuse {arguments.reuse:g}: a share from 0 to 1")
    made_up = arguments.trace is None
    for name, default in (_TRACE_FLAGS if made_up else _POISSON_FLAGS).items():
        if getattr(arguments, name) != default:
            needed, given = ("--trace", "--poisson") if made_up else ("--poisson", "--trace")
            raise ConfigError(f"--{name.replace('_', '-')} goes with {needed}; with {given} it has no effect")


def _with_flags(config: "ServeConfig", arguments: argparse.Namespace) -> "ServeConfig":
    given = {name: getattr(arguments, name) for name in ("seed", "supernodes")}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(config, simulation=replace(config.simulation, **changes))


def open_shard(flags: dict[str, object], seed: int, block_tokens: int, number: int, count: int) -> "RequestStream":
    """The workload of one supernode from the flags; called in the process that simulates it.

    Raises: TraceError for a bad trace, ConfigError for impossible numbers.
    """
    from serving.errors import ConfigError
    from serving.virtual.workload.open import open_workload
    from serving.virtual.workload.synthetic import synthetic_workload

    f = argparse.Namespace(**flags)
    if f.concurrency is not None:
        if f.concurrency < count:
            raise ConfigError(f"--concurrency {f.concurrency}: {count} supernodes need at least {count}")
        open_loop = open_shard(flags | {"concurrency": None}, seed, block_tokens, number, count)
        return open_loop.closed(f.concurrency // count + (number < f.concurrency % count))
    if f.trace is not None:
        return open_workload(
            f.trace,
            rate=f.rate,
            volume=f.volume,
            length=f.length,
            limit=f.limit,
            start_s=f.start,
            duration_s=f.duration,
            seed=seed,
            repeat=f.repeat,
            shard=(number, count),
            block_tokens=f.block_tokens,
            columns=f.columns,
        )
    if f.duration is None:
        raise ConfigError("--poisson needs --duration: for how many seconds requests arrive")
    return synthetic_workload(
        f.poisson / count,
        f.duration,
        f.prompt,
        f.output,
        reuse=f.reuse,
        seed=seed + number,
        block_tokens=block_tokens,
    )


def _only(whole: "RequestStream", _number: int, _count: int) -> "RequestStream":
    """The workload that was opened already, of the only supernode."""
    return whole


def _requests(whole: "RequestStream") -> int | None:
    """Requests of a workload, for progress; None if not known."""
    return whole.count if whole.jobs is None else sum(len(job.turns) for job in whole.jobs)


def _step_s(whole: "RequestStream") -> float | None:
    return None if whole.duration_s is None else max(0.1, whole.duration_s / 600)


def _faults(
    arguments: argparse.Namespace, config: "ServeConfig", whole: "RequestStream"
) -> "tuple[tuple[tuple[Fault, ...], ...], tuple[CommandConfig, ...]]":
    """Faults of each supernode, and operators' commands on the first one."""
    from hardware.errors import HardwareError
    from hardware.faults import FaultRates
    from serving.errors import ConfigError
    from serving.faults.scenario import VIRTUAL, Scenario, check_reach, load_scenario
    from serving.faults.schedule import plan_faults, units_of
    from serving.virtual.shards import seed_of

    units, seed = units_of(config), config.simulation.seed
    if arguments.faults:
        scenario = load_scenario(Path(arguments.faults), "--faults")
        check_reach(scenario, VIRTUAL, f"{arguments.faults}: cloudmatrix simulate", units.pools)
        duration_s = scenario.scenario.duration_s if arguments.duration is None else arguments.duration
        return (plan_faults(scenario, seed, duration_s, units),), scenario.command
    if arguments.fault_rate:
        try:
            scenario = Scenario(rates=FaultRates().scaled(arguments.fault_rate))
        except HardwareError as error:
            raise ConfigError(str(error)) from error
        duration_s = whole.duration_s or 3600.0
        supernodes = range(config.simulation.supernodes)
        return tuple(plan_faults(scenario, seed_of(seed, number), duration_s, units) for number in supernodes), ()
    return (), ()


def _typical_step(config: "ServeConfig", cost: "CostModel", result: "SimResult") -> "PredictedStep | None":
    """A decode step from the middle of the run, for the chart of its two streams."""
    from hardware.cost import DecodeLoad

    dies = config.decode.dies_per_instance
    batches = sorted(point.decode_batch for point in result.timeline if point.decode_batch)
    if not batches or not len(result.requests):
        return None
    rows = result.requests
    context = (sum(rows.prompt_tokens) + sum(rows.output_tokens) / 2) / len(rows)
    instances = max(1, config.decode.replicas * result.supernodes)
    groups = cost.decode.parallelism.groups(dies)
    requests = max(1.0, batches[len(batches) // 2] / instances / groups)
    return cost.decode_step(DecodeLoad(requests, requests * context, None, dies, config.simulation.drafts))
