"""`cloudmatrix chaos`: seeded faults against a live local system under load, with a report."""

import argparse
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.exit_codes import ExitCode
from loadgen.quantities import Duration
from loadgen.server_address import server_address

if TYPE_CHECKING:
    from hardware.faults import FaultUnits
    from serving.faults.scenario import Scenario
    from serving.tools.chaos.chaos_result import ChaosRun
    from serving.tools.chaos.machines import Machines

DESCRIPTION = """\
Kill and freeze replicas, flip bits, slow links down, fill disks, disconnect clients and let another tenant flood the
system, by a seeded schedule, under steady load; compare every response, token by token, with that of the undisturbed
system; then check for leaks.
A scenario is the same file that `cloudmatrix simulate --faults` plays in virtual time; hardware faults that only
virtual time has are refused (serving/tools/chaos/README.md has every kind and where it works).
Starts and stops a system of its own, unless --url names one. That one must run on this machine as this user, or with
--address on the hosts of that Ray, with [chaos] enabled = true; and its replicas WILL be killed.
"""
EPILOG = """\
Examples:
  cloudmatrix chaos --scenario deploy/chaos/quick.toml
  cloudmatrix chaos --scenario deploy/chaos/kills.toml --duration 5m --seed 3 --out chaos1
  cloudmatrix chaos --scenario deploy/chaos/everything.toml --url http://127.0.0.1:8000
  cloudmatrix chaos --scenario deploy/chaos/flood.toml
  cloudmatrix chaos --scenario deploy/chaos/hosts.toml --url http://10.0.0.2:8000 --address auto
--out writes report.html and report.json, and copies the replicas' logs if the run was not clean. Ctrl-C ends the load
early, a second one the settling time after it; the report is written in any case.
Exit code 1: at least one request was lost, different, leaked or delayed by another tenant.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="e.g. deploy/chaos/kills.toml")
    system = parser.add_mutually_exclusive_group()
    system.add_argument("--config", type=Path, metavar="FILE", help="system to start, instead of the scenario's")
    system.add_argument(
        "--url", type=server_address, help="a system that runs on this machine, instead of starting one"
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the system of --url runs on the hosts of this Ray, of which this machine is one; `auto`: this host's",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help="if the gateway requires one; an admin key if any are configured"
    )
    parser.add_argument(
        "--flood-api-key",
        metavar="KEY",
        help="of the tenant that sends a `flood`; a system that is started gets one for each tenant by itself",
    )
    parser.add_argument(
        "--duration",
        type=Duration(above_zero=True),
        metavar="T",
        help="e.g. 90s, 30min, 1h30m, instead of the scenario's",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of schedule and requests (default 0)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write report.html and report.json there")
    parser.add_argument("--json", action="store_true", help="print report.json instead of the summary")
    parser.add_argument("--plan", action="store_true", help="only print the schedule")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Inject faults into a system, and report.

    Returns: 1 if work was lost, differs or was left behind.
    Raises: ConfigError, UnavailableError in one line.
    """
    from serving.faults.scenario import load_scenario
    from serving.terminal import make_folder, table_console, write_file
    from serving.tools.chaos.chaos_page import report_page
    from serving.tools.chaos.chaos_tables import print_report, report_json
    from serving.tools.chaos.findings import find

    scenario = load_scenario(arguments.scenario)
    _check_faults(scenario, arguments)
    _check_hosts(scenario, arguments)
    keys = _keys(scenario, arguments)
    duration_s = scenario.scenario.duration_s if arguments.duration is None else arguments.duration
    if arguments.plan:
        return _print_plan(scenario, arguments, duration_s)
    if arguments.out:
        make_folder(arguments.out)
    run = _carry_out(scenario, arguments, duration_s, keys)
    found = find(run)
    if arguments.out:
        write_file(arguments.out / "report.json", report_json(run, found))
        write_file(arguments.out / "report.html", report_page(run, found).encode())
    if arguments.json:
        sys.stdout.buffer.write(report_json(run, found))
    else:
        print_report(run, found, table_console())
    if arguments.out:
        print(f"wrote {arguments.out / 'report.html'} and report.json", file=sys.stderr)
    return ExitCode.OK if found.clean else ExitCode.FAILURE


def _check_faults(scenario: "Scenario", arguments: argparse.Namespace) -> None:
    """Raises: ConfigError if there is no fault, or one that the system to be started does not support.

    A running system is checked once it has reported its pools.
    """
    from serving.config.load import load_config
    from serving.errors import ConfigError
    from serving.faults.scenario import LIVE, check_reach
    from serving.faults.schedule import units_of

    if not scenario.kinds:
        raise ConfigError(f"{arguments.scenario}: no [[faults]] with a weight above 0, no [[fault]] and no [rates]")
    if arguments.url is None:
        units = units_of(load_config(_config(scenario, arguments)))
        check_reach(scenario, LIVE, "cloudmatrix chaos", units.pools)


def _check_hosts(scenario: "Scenario", arguments: argparse.Namespace) -> None:
    """Raises: ConfigError if a system on several hosts is addressed that does not support such faults."""
    from serving.errors import ConfigError
    from serving.faults.schedule import OF_PARTS

    if arguments.address is None:
        return
    if arguments.url is None:
        raise ConfigError("--address needs --url, of a gateway of the system on that Ray")
    if parts := sorted(scenario.kinds & OF_PARTS):
        kinds = " and ".join(parts)
        raise ConfigError(f"{kinds}: only for a system of this machine; on hosts there are kill, freeze and the others")


def _keys(scenario: "Scenario", arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """API keys of load and flood: the given ones, or new ones if the started system needs two.

    Raises: ConfigError if a flood would not be from another tenant.
    """
    import secrets

    from serving.faults.scenario import check_flood_keys

    given = arguments.api_key, arguments.flood_api_key
    if scenario.has_flood and arguments.url is None and given == (None, None):
        return secrets.token_hex(16), secrets.token_hex(16)
    if not arguments.plan:
        check_flood_keys(scenario, *given)
    return given


def _carry_out(
    scenario: "Scenario", arguments: argparse.Namespace, duration_s: float, keys: tuple[str | None, str | None]
) -> "ChaosRun":
    """Find or start the system, run, and stop a started one."""
    import asyncio

    from serving.errors import UnavailableError
    from serving.terminal import endings_as_interrupt
    from serving.tools.chaos.chaos_run import ChaosOrder, ChaosProgress, run_chaos
    from serving.tools.chaos.findings import find
    from serving.tools.chaos.own_system import OwnSystem, keep_logs, left_after

    api_key, flood_api_key = keys
    made = (api_key, flood_api_key) if api_key and flood_api_key and not arguments.flood_api_key else None
    system = None if arguments.url else OwnSystem(_config(scenario, arguments), keys=made)
    run: ChaosRun | None = None
    with ChaosProgress(duration_s, quiet=arguments.quiet) as progress:
        if system is not None:
            progress.stage("starting a system")
        try:
            with _machines(arguments) as machines, endings_as_interrupt(), system or nullcontext():
                url = system.url if system is not None else arguments.url
                name = arguments.scenario.stem
                order = ChaosOrder(name, scenario, arguments.seed, duration_s, url, api_key, machines, flood_api_key)
                run = asyncio.run(run_chaos(order, progress))
                if arguments.out and not find(run).clean:
                    keep_logs(run.session, arguments.out / "logs")
        except (KeyboardInterrupt, asyncio.CancelledError):
            if run is None:
                raise UnavailableError("interrupted before there was anything to report") from None
        if system is not None:
            run.leaks.after_stop = system.left + left_after(run.session)
    return run


def _machines(arguments: argparse.Namespace) -> "AbstractContextManager[Callable[[dict[str, Any]], Machines]]":
    """Locator of the system's processes for the run. Ray is imported only for a system on hosts."""
    from serving.tools.chaos.machines import ThisMachine

    if arguments.address is None:
        return nullcontext(ThisMachine.of)
    from serving.tools.chaos.host_agents import cluster_machines

    return cluster_machines(arguments.address)


def _config(scenario: "Scenario", arguments: argparse.Namespace) -> Path:
    from serving.config.load import load_config
    from serving.errors import ConfigError
    from serving.faults.scenario import config_path

    path: Path | None = arguments.config or config_path(scenario, arguments.scenario)
    if path is None:
        raise ConfigError("the scenario names no system to start: give --config FILE, or --url of one that runs")
    load_config(path)  # reports mistakes before anything is started
    return path


def _print_plan(scenario: "Scenario", arguments: argparse.Namespace, duration_s: float) -> int:
    """Print the schedule for the actual target system."""
    from loadgen.report.numbers import clock
    from serving.config.load import load_config
    from serving.faults.scenario import LIVE, check_reach
    from serving.faults.schedule import plan_faults, units_of

    units = _units_at(arguments) if arguments.url else units_of(load_config(_config(scenario, arguments)))
    check_reach(scenario, LIVE, "cloudmatrix chaos", units.pools)
    for planned in plan_faults(scenario, arguments.seed, duration_s, units):
        target = planned.target or " or ".join(planned.pools)
        print(f"{clock(planned.at_s):>7} {planned.kind} {target}".rstrip())
    return ExitCode.OK


def _units_at(arguments: argparse.Namespace) -> "FaultUnits":
    from serving.client.http_client import ask_gateway
    from serving.tools.chaos.targets import units_at

    return units_at(ask_gateway(arguments.url, "/cluster", arguments.api_key))
