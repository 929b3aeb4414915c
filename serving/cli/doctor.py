"""`cloudmatrix doctor`: what would keep the system from running on this machine, or on the hosts of a Ray."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.exit_codes import ExitCode
from serving.cli.options import add_address, add_set, address_of
from serving.shipped import DEFAULT_CONFIG

if TYPE_CHECKING:
    from serving.config.serve import ServeConfig

DESCRIPTION = """\
Without --address: check this machine before a start (Python, packages, compiler, instruction sets, memory, /dev/shm,
disk, ports). With --address: check every host of that Ray before a deployment: version of this package, model folder,
free space in /dev/shm, clock, environment, TLS, and whether hosts reach each other. Each problem is one line with its
remedy.
"""
EPILOG = """\
Examples:
  cloudmatrix doctor
  cloudmatrix doctor --address 10.0.0.1:6379 --config deploy/hosts.toml
Exit code 1: a check failed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_address(parser, absent="this machine, without a Ray")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file that will be served (default: deploy/small.toml, or none with --address)",
    )
    add_set(parser, "cluster.port_range=30000-30100")


def run(arguments: argparse.Namespace) -> int:
    """Examine the machine or the hosts, and print the result.

    Raises: ConfigError if there is no such Ray, or the file cannot be read.
    """
    from serving.config.load import read_config
    from serving.errors import ConfigError

    address = address_of(arguments)
    if address is None:
        file = arguments.config or DEFAULT_CONFIG
        return _examine_machine(read_config(file, settings=arguments.set).config)
    model, pool = None, False
    from serving.config.cluster import ANY_PORT

    ports = ANY_PORT
    if arguments.config is not None:
        config = read_config(arguments.config, settings=arguments.set, own_nodes=False).config
        model, ports = (config.model.path if config.model.hub is None else None), config.cluster.ports
        pool = config.kvcache.replicas > 0
    elif arguments.set:
        raise ConfigError("--set changes the file of --config: give --config, too")
    from serving.launch.doctor import examine

    return examine(address, model, ports, pool=pool)


def _examine_machine(config: "ServeConfig") -> int:
    """Print a row for each finding. Returns: the exit code: 1 if something is short."""
    from serving.cli.status_table import plain_table
    from serving.launch.machine_checks import findings
    from serving.terminal import table_console

    found = findings(config)
    table = plain_table(("", "", ""), ())
    table.show_header = False
    for one in found:
        table.add_row(one.name, "short" if one.remedy else "ok", one.found)
    table_console().print(table)
    problems = [one for one in found if one.remedy]
    for one in problems:
        print(f"{one.name}: {one.remedy}")
    count = f"{len(problems)} problem{'s' * (len(problems) != 1)}"
    print(f"{count} found" if problems else "this machine is ready: `cloudmatrix serve`")
    return ExitCode.FAILURE if problems else ExitCode.OK
