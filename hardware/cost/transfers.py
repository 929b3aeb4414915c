"""Uncontended transfer times: handoff, pool, weights. Sharing is the fabric's matter."""

import math
from typing import Literal

from hardware.cost.device_model import DeviceModel
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError
from hardware.units import GIGA, Seconds

WeightSource = Literal["pool", "storage", "prewarmed", "peer"]
PoolPlane = Literal["ub", "vpc"]
TCP_SHARE = 87 / 2.4 / 100
"""Share of a 400 Gb/s card's rate that TCP reaches.

Source: README of Mooncake's Transfer Engine: 87 GB/s over 4 x 200 Gb/s, 2.4 times as much as TCP.
"""


def handoff_s(device: DeviceModel, nbytes: float, links: int = 1) -> Seconds:
    """Prefill-to-decode KV over RDMA.

    Args:
        links: dies' RDMA links that carry equal parts.
    Raises: SpecError for less than one link.
    Source: CloudMatrix384 paper 4.3.3: 4K tokens of DeepSeek-R1, 288 MB, 11.5 ms on one link.
    """
    if links < 1:
        raise SpecError(f"a handoff over {links} links moves nothing")
    return Seconds(device.links.rdma_latency_s + nbytes / (links * device.links.rdma_bytes_per_s))


def pool_rate(device: DeviceModel, plane: PoolPlane = "ub") -> float:
    """Effective rate at which one NPU loads cached blocks from the memory pool [B/s].

    NPUs are not on the VPC plane: blocks arrive in their host's memory over TCP, and are then loaded like those of a
    pool on the UB plane, so that the times of both ways add up.

    Source: UB: fitted to the CloudMatrix384 paper's Fig 23. VPC: not fitted; the paper's planes (3.2) and `TCP_SHARE`.
    """
    ub = device.calibration.pool_load_bytes_per_s
    if plane == "ub":
        return ub
    return 1 / (1 / ub + 1 / (TCP_SHARE * device.links.vpc_bytes_per_s * device.die.per_npu))


def pool_latency_s(device: DeviceModel, plane: PoolPlane = "ub") -> Seconds:
    """Time until the first byte of a load from the memory pool arrives."""
    return Seconds(device.links.pool_read_latency_s + (device.links.vpc_latency_s if plane == "vpc" else 0.0))


def pool_load_s(
    device: DeviceModel, nbytes: float, npus: float, gb_per_s: float | None = None, plane: PoolPlane = "ub"
) -> Seconds:
    """Cached blocks from the memory pool into an instance, each NPU its own part.

    Args:
        gb_per_s: per NPU; None = the effective rate of `plane`.
    Raises: SpecError for less than one NPU or no rate.
    """
    rate = pool_rate(device, plane) if gb_per_s is None else gb_per_s * GIGA
    if npus < 1 or rate <= 0:
        raise SpecError(f"a pool load by {npus} NPUs at {rate / GIGA:g} GB/s never ends")
    return Seconds(pool_latency_s(device, plane) + nbytes / (npus * rate))


def ub_read_s(device: DeviceModel, nbytes: float, *, pooled: bool = True) -> Seconds:
    """One die reads over the scale-up fabric, from pooled memory or from another die."""
    links = device.links
    if pooled:
        return Seconds(links.pool_read_latency_s + nbytes / links.pool_read_bytes_per_s)
    return Seconds(links.peer_read_latency_s + nbytes / links.peer_read_bytes_per_s)


def ub_write_s(device: DeviceModel, nbytes: float, *, pooled: bool = True) -> Seconds:
    """One die writes over the scale-up fabric, to pooled memory or to another die."""
    links = device.links
    if pooled:
        return Seconds(links.pool_write_latency_s + nbytes / links.pool_write_bytes_per_s)
    return Seconds(links.peer_write_latency_s + nbytes / links.peer_write_bytes_per_s)


def vpc_s(device: DeviceModel, nbytes: float, dies: float = 1) -> Seconds:
    """Bytes over the datacentre network, each die with its part of the node's card."""
    return Seconds(device.links.vpc_latency_s + nbytes / (dies * device.links.vpc_bytes_per_s))


def model_load_s(device: DeviceModel, shape: ModelShape, source: WeightSource, loaders: int = 1) -> Seconds:
    """Time until an instance has its weights.

    Args:
        source: `storage` = object storage, one bucket that all loaders share; `pool` = memory pool; `peer` = a running
            instance's memory, die by die; `prewarmed` = already there.
        loaders: instances that load at once.
    Raises: SpecError for an unknown source or no loader.
    Source: CloudMatrix384 paper, Table 2: 320 s, 8 loaders 2,560 s, pool 5 s; `peer` from xDeepServe's NPU-fork.
    """
    loading = device.loading
    if loaders < 1:
        raise SpecError(f"{loaders} instances cannot load a model")
    if source == "storage":
        return Seconds(shape.weight_bytes * loaders / loading.storage_bytes_per_s)
    if source == "pool":
        return Seconds(shape.weight_bytes / loading.pool_bytes_per_s)
    if source == "peer":
        return Seconds(shape.weight_bytes / loading.peer_bytes_per_s)
    if source == "prewarmed":
        return Seconds(0.0)
    raise SpecError(f"weights from {source!r}: use pool, storage, peer or prewarmed")


def model_switch_s(device: DeviceModel, shape: ModelShape, hit_rate: float) -> Seconds:
    """Mean time to switch an instance to another model.

    Args:
        hit_rate: share of switches whose model the pool holds; the others load from storage.
    Raises: SpecError for a share outside of 0 .. 1.
    Source: CloudMatrix384 paper, Table 2.
    """
    if not 0 <= hit_rate <= 1 or math.isnan(hit_rate):
        raise SpecError(f"a hit rate of {hit_rate} is no share")
    warm, cold = model_load_s(device, shape, "pool"), model_load_s(device, shape, "storage")
    return Seconds(hit_rate * warm + (1 - hit_rate) * cold)
