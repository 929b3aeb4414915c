"""Samples of the whole supernode at regular intervals."""

from hardware.spec.catalog import CLOUDMATRIX384
from serving.values.pool_kinds import POOL_KINDS
from serving.virtual.result import SimulatedPoint
from serving.virtual.supernode import Supernode

_UB = CLOUDMATRIX384.node.npu.ub_bytes_per_s
_RDMA = CLOUDMATRIX384.node.npu.rdma_bytes_per_s
_VPC = CLOUDMATRIX384.node.vpc_bytes_per_s / CLOUDMATRIX384.node.npus
"""Of each NPU [B/s]."""


class Timeline:
    """Time line with a point every `step_s` seconds."""

    def __init__(self, node: Supernode, step_s: float) -> None:
        self.points: list[SimulatedPoint] = []
        self.npu_seconds = 0.0
        """NPU time of instances that served or started [s], integrated over the points."""
        self._node = node
        self.step_s = step_s
        self._before = (0, 0, 0)

    def start(self) -> None:
        """Sample now, and then at regular intervals while the supernode is busy."""
        self._node.queue.at(self._node.queue.now, self._look)

    def end(self) -> None:
        """Take the last sample."""
        self._take()

    def _look(self, _: object) -> None:
        self._take()
        if self._node.busy:
            self._node.queue.at(self._node.queue.now + self.step_s, self._look)

    def _take(self) -> None:
        node = self._node
        passed_s = node.queue.now - self.points[-1].at_s if self.points else 0.0
        serving = {pool: sum(one.npus for one in node.instances(pool)) for pool in node.config.pools}
        starting = node.sizes.starting_npus
        growing = node.changing_npus if node.parts is None else node.parts.growing_npus
        leaving = 0 if node.parts is None else node.parts.leaving_npus
        busy = sum(serving.values())
        network = node.network
        ub, rdma, vpc = network.ub_bytes + node.expert_bytes, network.rdma_bytes, network.vpc_bytes
        used = {one.name: one.kv_used() for one in node.everyone}
        for instance in node.everyone:
            meter = instance.meter
            meter.peak_kv_share = max(meter.peak_kv_share, used[instance.name] / instance.kv_blocks)
        span = max(1, busy) * (passed_s or self.step_s)
        # An instance that does both has a queue of prompts; its other values are added to those of decode.
        decodes = node.decoding
        prefills = [one for one in node.everyone if POOL_KINDS[one.pool].prefills]
        if node.pool is not None and (due := node.pool.next_tick()) is not None and due <= node.queue.now:
            node.pool.tick(node.queue.now)
        self.points.append(
            SimulatedPoint(
                at_s=node.queue.now,
                prefill_queue_tokens=sum(one.status()[0] for one in prefills),
                prefill_waiting=sum(one.waiting() for one in prefills),
                decode_waiting=sum(one.waiting() for one in node.decodes),
                decode_batch=sum(one.batch for one in decodes),
                prefill_kv_share=_share(
                    sum(used[p.name] for p in node.prefills), sum(p.kv_blocks for p in node.prefills)
                ),
                decode_kv_share=_share(sum(used[d.name] for d in decodes), sum(d.kv_blocks for d in decodes)),
                pool_share=_share(*node.pool.memory_bytes) if node.pool is not None else 0.0,
                prefill_npus=serving.get("prefill", 0),
                decode_npus=sum(one.npus for one in decodes),
                starting_npus=starting + growing,
                idle_npus=max(0, node.placement.idle - starting),
                ub_bytes=ub,
                rdma_bytes=rdma,
                vpc_bytes=vpc,
                ub_share=(ub - self._before[0]) / (_UB * span),
                rdma_share=(rdma - self._before[1]) / (_RDMA * span),
                vpc_share=(vpc - self._before[2]) / (_VPC * span),
                step_s=max((one.step_s for one in decodes), default=0.0),
                draining_npus=sum(one.npus for one in node.everyone if one.draining) + leaving,
                memory_servers=len(node.pool.active()) if node.pool is not None else 0,
            )
        )
        self._before = ub, rdma, vpc
        self.npu_seconds += (busy + starting + growing) * passed_s


def _share(used: int, total: int) -> float:
    return used / total if total else 0.0
