"""A short Ray session with virtual NPUs; run by `test_ray_resources` in a separate process."""

from typing import Any

import ray

from hardware.errors import NpuAllocationError
from hardware.ray_resources import (
    allocated_npu_ids,
    allocated_npus,
    node_labels,
    node_resources,
    replica_resources,
    silence_npu_probe,
)


class Holder:
    """An actor that reports its resources."""

    def ids(self) -> list[str]:
        return [str(npu) for npu in allocated_npu_ids(3)]

    def refusal(self) -> str:
        try:
            allocated_npus()
        except NpuAllocationError as error:
            return type(error).__name__
        return "no refusal"


def start_holder(npus: int) -> Any:
    """A remote `Holder` with that many NPUs."""
    return ray.remote(num_cpus=0, resources=replica_resources(npus, 64))(Holder).remote()


def main() -> None:
    silence_npu_probe()
    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=0,
        resources=node_resources(8, 512),
        labels=node_labels(3),
        include_dashboard=False,
    )
    try:
        two = start_holder(npus=2)
        none = start_holder(npus=0)
        print("two NPUs:", ray.get(two.ids.remote(), timeout=120))
        print("none:", ray.get(none.refusal.remote(), timeout=120))
        left = ray.available_resources()
        print(f"left: {left['NPU']:.0f} NPU, {left['UB_MEMORY']:.0f} UB_MEMORY")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
