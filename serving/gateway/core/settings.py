"""Settings of one gateway's core; the header of its decision log."""

from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.gateway_router import GatewayRouter
from serving.gateway.core.route_decision import Rule
from serving.values.news import Value


class GatewaySettings(Value, frozen=True):
    """One gateway.

    Args:
        name: unique in the cluster; part of the ids of its sequences.
        pools: names of the engine pools in the order in which a request passes them.
        max_age_s: an instance that has been silent for longer counts as dead [s].
        history_blocks, rule, seed, attention_tokens, prefer_host: as in `GatewayRouter`.
        max_attempts: failures in a row after which a sequence is abandoned.
        role_wait_s: how long a sequence waits for an instance of a role [s].
        empty_role_s: time without a decode instance after which prefill instances decode [s].
        prefetch: whether memory servers have an SSD tier, from which waiting prompts are prefetched.
        coming: whether instances are expected, or would be started for waiting requests.
    """

    name: str
    pools: tuple[str, ...]
    max_age_s: float
    block_tokens: int
    history_blocks: int = 0
    rule: Rule | None = None
    seed: int = 0
    attention_tokens: float = 0.0
    limits: AdmissionLimits = AdmissionLimits(512, 1_000_000, 256)
    max_attempts: int = 3
    role_wait_s: float = 30.0
    empty_role_s: float = 5.0
    coming: bool = True
    version: str = ""
    prefer_host: bool = False
    prefetch: bool = False

    def router(self) -> GatewayRouter:
        """A new router."""
        blocks = self.block_tokens, self.history_blocks
        return GatewayRouter(
            self.max_age_s, *blocks, self.rule, self.seed, self.attention_tokens, prefer_host=self.prefer_host
        )

    def queue(self) -> AdmissionQueue:
        """A new admission queue."""
        return AdmissionQueue(self.limits)
