"""Which prefill rank a decode rank pulls from.

With one latent KV head (MLA) every rank of a prefill tensor-parallel group holds the same full KV. If all decode ranks
pulled from rank 0, its link would be the hot spot; this map spreads them evenly.

Worked example: prefill TP 32, decode TP 1, decode DP 320. Ratio 32, groups of 10: decode ranks 0-9 pull from prefill
rank 0, ranks 10-19 from rank 1, ... ranks 310-319 from rank 31.
"""

from dataclasses import dataclass

from serving.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HandoffMap:
    """The map of one prefill instance and one decode instance.

    Args:
        prefill_tp_size: ranks of a prefill tensor-parallel group.
        decode_tp_size: ranks of a decode tensor-parallel group; divides `prefill_tp_size`.
        decode_dp_size: decode data-parallel groups; a multiple of `prefill_tp_size / decode_tp_size`.
    Raises: ConfigError if the sizes do not divide.
    Source: CloudMatrix384 paper, section 4.3.3.
    """

    prefill_tp_size: int
    decode_tp_size: int
    decode_dp_size: int

    def __post_init__(self) -> None:
        if min(self.prefill_tp_size, self.decode_tp_size, self.decode_dp_size) < 1:
            raise ConfigError("parallel sizes must be at least 1")
        if self.prefill_tp_size % self.decode_tp_size:
            raise ConfigError(
                f"decode TP {self.decode_tp_size} must divide prefill TP {self.prefill_tp_size} for a balanced handoff"
            )
        if self.decode_dp_size % self.ratio:
            raise ConfigError(
                f"decode DP {self.decode_dp_size} must be a multiple of prefill TP / decode TP = {self.ratio}"
            )

    @property
    def ratio(self) -> int:
        """Prefill ranks per decode tensor-parallel rank."""
        return self.prefill_tp_size // self.decode_tp_size

    @property
    def group_size(self) -> int:
        """Decode data-parallel ranks that share one prefill rank."""
        return self.decode_dp_size // self.ratio

    def prefill_rank(self, decode_dp_rank: int, decode_tp_rank: int = 0) -> int:
        """The prefill rank that a decode rank pulls from.

        Raises: ConfigError if the decode rank does not exist.
        """
        if not (0 <= decode_dp_rank < self.decode_dp_size and 0 <= decode_tp_rank < self.decode_tp_size):
            raise ConfigError(f"there is no decode rank DP {decode_dp_rank}, TP {decode_tp_rank}")
        return decode_dp_rank // self.group_size * self.decode_tp_size + decode_tp_rank
