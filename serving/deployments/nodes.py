"""What a replica needs to know about the Ray node it runs on."""

from typing import Any

import ray

from serving.errors import ConfigError
from serving.ids import NodeId


def node_segment_mib(node: NodeId) -> int:
    """Size of a node's UB segment: all of the `UB_MEMORY` that the node offers [MiB].

    Raises: ConfigError if it offers none.
    """
    mib = int(_node(node)["Resources"].get("UB_MEMORY", 0))
    if mib < 1:
        raise ConfigError(
            f"Ray node {node} offers no resource UB_MEMORY; start it with --resources='{{\"UB_MEMORY\": 1024}}'"
        )
    return mib


def link_host() -> str:
    """Address on which this process listens for gateways: loopback when every node is on this machine."""
    addresses = {n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
    own = ray.util.get_node_ip_address()
    return "127.0.0.1" if addresses <= {own} else str(own)


def _node(node: NodeId) -> dict[str, Any]:
    return next(n for n in ray.nodes() if n["NodeID"] == node)
