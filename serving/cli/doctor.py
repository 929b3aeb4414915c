"""`cloudmatrix doctor`: a row for each host of a Ray, and a line for each problem."""

import argparse
from pathlib import Path

from serving.cli.options import add_address, add_set, address_of

DESCRIPTION = """\
Check every host of a Ray before a deployment: version of this package, model folder, free space in /dev/shm,
clock, environment, TLS, and whether hosts reach each other. Each problem is one line with its remedy.
"""
EPILOG = """\
Examples:
  cloudmatrix doctor --address 10.0.0.1:6379 --config deploy/hosts.toml
Exit codes: 0, 1 if a check failed, 2 for usage errors.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_address(parser, required=True)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file whose model and [cluster] port_range are checked"
    )
    add_set(parser, "cluster.port_range=30000-30100")


def run(arguments: argparse.Namespace) -> int:
    """Examine and print the hosts. Raises: ConfigError if there is no such Ray, or the file cannot be read."""
    from serving.config.cluster import ANY_PORT
    from serving.config.load import read_config
    from serving.errors import ConfigError

    model, ports, pool = None, ANY_PORT, False
    if arguments.config is not None:
        config = read_config(arguments.config, settings=arguments.set, own_nodes=False).config
        model, ports = (config.model.path if config.model.hub is None else None), config.cluster.ports
        pool = config.kvcache.replicas > 0
    elif arguments.set:
        raise ConfigError("--set changes the file of --config: give --config, too")
    from serving.launch.doctor import examine

    return examine(address_of(arguments) or "auto", model, ports, pool=pool)
