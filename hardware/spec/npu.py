"""One NPU: the package that is bought, scheduled and given to an instance as a whole."""

from dataclasses import dataclass, replace

from hardware.spec._check import require_positive
from hardware.spec.die import DieSpec, scaled_name
from hardware.units import Bytes


@dataclass(frozen=True, slots=True)
class NpuSpec:
    """A package of equal dies. Throughput is published per NPU, ranks are dies."""

    name: str
    die: DieSpec
    dies: int

    def __post_init__(self) -> None:
        require_positive(self)

    @property
    def hbm_bytes(self) -> Bytes:
        """Memory of all dies together."""
        return Bytes(self.dies * self.die.hbm_bytes)

    @property
    def bf16_flops_per_s(self) -> float:
        """Dense BF16 peak of all dies together."""
        return self.dies * self.die.bf16_flops_per_s

    @property
    def int8_ops_per_s(self) -> float:
        """Dense INT8 peak of all dies together."""
        return self.dies * self.die.int8_ops_per_s

    @property
    def ub_bytes_per_s(self) -> float:
        """UB line rate, one direction."""
        return self.dies * self.die.ub_bytes_per_s

    @property
    def rdma_bytes_per_s(self) -> float:
        """RDMA line rate, one direction."""
        return self.dies * self.die.rdma_bytes_per_s

    def with_hbm_per_die(self, hbm_bytes: int) -> "NpuSpec":
        """The same NPU with another memory size per die (see `DieSpec.with_hbm`).

        Raises: SpecError if the size is not above zero.
        """
        if hbm_bytes == self.die.hbm_bytes:
            return self
        return replace(self, name=scaled_name(self.name), die=self.die.with_hbm(hbm_bytes))
