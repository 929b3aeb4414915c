"""One die: the smallest unit that computes, and one rank of a parallel group."""

from dataclasses import dataclass, replace

from hardware.spec._check import require_positive
from hardware.units import Bytes

_SCALED = " (scaled HBM)"


@dataclass(frozen=True, slots=True)
class DieSpec:
    """Capabilities of one die. Rates are peaks per second; links are one direction.

    Attributes:
        name: what to call it on a status page.
        cube_cores: matrix cores (AIC).
        vector_cores: element-wise cores (AIV).
        bf16_flops_per_s: dense BF16 or FP16 peak.
        int8_ops_per_s: dense INT8 peak.
        hbm_bytes: capacity of the die's memory.
        hbm_bytes_per_s: peak memory bandwidth.
        on_package_bytes_per_s: link to the other die of the same NPU.
        ub_links: UB transceivers, one into each UB sub-plane.
        ub_bytes_per_s: UB line rate of all links together.
        rdma_bytes_per_s: RoCE line rate.
    """

    name: str
    cube_cores: int
    vector_cores: int
    bf16_flops_per_s: float
    int8_ops_per_s: float
    hbm_bytes: Bytes
    hbm_bytes_per_s: float
    on_package_bytes_per_s: float
    ub_links: int
    ub_bytes_per_s: float
    rdma_bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(self)

    def with_hbm(self, hbm_bytes: int) -> "DieSpec":
        """The same die with another memory size: a scaled-down virtual die that fits a laptop.

        Args:
            hbm_bytes: bytes of the die's ledger.
        Returns: a copy with a name that marks the memory size as scaled.
        Raises: SpecError if the size is not above zero.
        """
        if hbm_bytes == self.hbm_bytes:
            return self
        return replace(self, name=scaled_name(self.name), hbm_bytes=Bytes(hbm_bytes))


def scaled_name(name: str) -> str:
    """A name that marks the memory size as scaled."""
    return name if name.endswith(_SCALED) else name + _SCALED
