"""Setting of every experiment: the cost model, a seed, and how thorough to be."""

import random
from dataclasses import dataclass, field

from hardware.cost import DEEPSEEK_R1, CostModel, load_device

DEVICE = "ascend-910c"


def default_cost() -> CostModel:
    """DeepSeek-R1 on the die of a CloudMatrix384."""
    return CostModel(load_device(DEVICE), DEEPSEEK_R1)


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of `cloudmatrix reproduce`.

    Attributes:
        quick: fewer dies, samples and requests: the same questions in a tenth of the time.
    """

    cost: CostModel = field(default_factory=default_cost)
    seed: int = 0
    quick: bool = False

    def stream(self, component: str) -> random.Random:
        """Randomness of one component; what others draw does not change it."""
        return random.Random(f"{self.seed}/reproduce/{component}")

    def size(self, full: int, quick: int) -> int:
        """A number of samples."""
        return quick if self.quick else full
