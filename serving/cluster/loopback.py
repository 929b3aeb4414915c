"""Ray Serve's own listener in each replica, restricted to loopback if the node's address is loopback."""

from typing import Any

EVERY_INTERFACE = "[::]:"


def keep_on_loopback() -> None:
    """Make this replica's gRPC server, which Serve opens after the constructor, listen on loopback only.

    The server unpickles its input, and Serve binds it to every interface, without a setting. With
    `RAY_AUTH_MODE=token`, which our own start sets, it refuses calls without the token in Ray 2.60; on a Ray started
    without that mode it accepts them from any client. This system does not use it: calls between deployments go through
    Ray. On a node with another address nothing changes.

    Effects: on Serve's replica module in this process; a second call changes nothing.
    """
    import ray
    from ray.serve._private import replica  # Serve names no public place for this

    if ray.util.get_node_ip_address() != "127.0.0.1":
        return
    serve_replica: Any = replica
    bind = serve_replica.add_port_to_grpc_server
    if getattr(bind, "on_loopback", False):
        return

    def bind_on_loopback(server: Any, address: str) -> int:
        if address.startswith(EVERY_INTERFACE):
            address = f"127.0.0.1:{address.removeprefix(EVERY_INTERFACE)}"
        return int(bind(server, address))

    bind_on_loopback.on_loopback = True  # type: ignore[attr-defined]
    serve_replica.add_port_to_grpc_server = bind_on_loopback
