"""Types of names that are used across modules; distinct, so that they cannot be confused."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One HTTP request; its `n` sequences are `<request id>/<choice index>`."""

SequenceId = NewType("SequenceId", str)
"""One generated sequence, the unit that engines schedule. A request with `n = 3` has three."""

BlockId = NewType("BlockId", int)
"""Index of a KV block inside one instance's KV arena."""

BlockHash = NewType("BlockHash", bytes)
"""Chained prefix hash of one full KV block, 16 bytes: equal hash = equal tokens from the start, equal salt."""

ReplicaId = NewType("ReplicaId", str)
"""A Ray Serve replica, for example `decode#k3jx9a`."""

NodeId = NewType("NodeId", str)
"""A Ray node, hexadecimal."""

GatewayId = NewType("GatewayId", str)
"""One gateway replica: the owner of the requests it accepted."""
