"""`--address`: a Ray that is there, for every command that reaches one."""

import argparse

OWN = "local"
"""Means a Ray of one's own, as for Ray itself."""


def add_address(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The option.

    Args:
        required: without it, and without RAY_ADDRESS, the Ray of this host is meant.
    """
    default = "RAY_ADDRESS, else that of this host" if required else "RAY_ADDRESS, else a Ray of its own"
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="auto" if required else None,
        help=f"head of a Ray that is there, or `auto` for that of this host (default: {default})",
    )


def address_of(arguments: argparse.Namespace) -> str | None:
    """The address that was given, or that is in Ray's own variable; None for a Ray of one's own."""
    from serving.cluster.host_environment import ADDRESS, value_here

    address: str = arguments.address or value_here(ADDRESS)
    return None if address in ("", OWN) else address
