"""`--address`: an existing Ray, for every command that connects to one."""

import argparse

OWN = "local"
"""A Ray of one's own, as for Ray itself."""


def add_address(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add the option.

    Args:
        required: if false, the default is RAY_ADDRESS, or no address.
    """
    default = "RAY_ADDRESS, else that of this host" if required else "RAY_ADDRESS, else a Ray of its own"
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="auto" if required else None,
        help=f"head of a Ray that is there, or `auto` for that of this host (default: {default})",
    )


def address_of(arguments: argparse.Namespace) -> str | None:
    """The given address, or that of Ray's own variable; None for a Ray of one's own."""
    from serving.cluster.host_environment import ADDRESS, value_here

    address: str = arguments.address or value_here(ADDRESS)
    return None if address in ("", OWN) else address
