"""Rules for how simulated instances divide their work, and for drafts; contradictions are refused."""

from serving.config.cluster import DIES_PER_NPU
from serving.config.serve import ServeConfig
from serving.errors import ConfigError


def check_division(config: ServeConfig) -> None:
    """Refuse groups of dies that do not divide an instance, or its parts.

    Raises: ConfigError.
    """
    simulation = config.simulation
    pools = {f"[{name}]": pool.dies_per_instance for name, pool in config.pools.items()}
    prompts, answers = [
        {name: dies for name, dies in pools.items() if name != one} for one in ("[decode]", "[prefill]")
    ]
    parts = {"[autoscaler] decode_step_npus": config.autoscaler.decode_step_npus * DIES_PER_NPU}
    for name, tp, sizes in (
        ("decode_attention_tp", simulation.decode_attention_tp, answers | parts),
        ("prefill_attention_tp", simulation.prefill_attention_tp, prompts),
        ("expert_tp", simulation.expert_tp, answers | prompts | parts),
        ("head_tp", simulation.head_tp, answers | prompts | parts),
    ):
        for of, dies in sizes.items():
            if dies % tp:
                raise ConfigError(f"[simulation] {name} = {tp} does not divide the {dies} dies of {of}: change either")
    layout = simulation.prefill_attention
    if simulation.prefill_attention_tp > 1 and layout not in {"device", "data-parallel"}:
        raise ConfigError(
            f'[simulation] prefill_attention = "{layout}" is over all dies, but prefill_attention_tp ='
            f" {simulation.prefill_attention_tp} over groups of them: set one of them"
        )
    if simulation.expert_dies:
        _check_experts_apart(config)


def _check_experts_apart(config: ServeConfig) -> None:
    """Refuse a number of expert dies that leaves none for attention, or that the cost model does not cover."""
    simulation, dies, scaler = config.simulation, config.decode.dies_per_instance, config.autoscaler
    name, attention = f"[simulation] expert_dies = {simulation.expert_dies}", dies - simulation.expert_dies
    if attention < 1:
        raise ConfigError(
            f"{name} leaves none of the {dies} dies of [decode] for attention: lower it, or raise npus_per_instance"
        )
    if attention % simulation.domains:
        raise ConfigError(
            f"[simulation] domains = {simulation.domains} does not divide {attention} attention dies, which {name} "
            f"leaves of {dies}: change one of them"
        )
    for other in ("decode_attention_tp", "head_tp", "expert_tp"):
        if getattr(simulation, other) > 1:
            raise ConfigError(f"[simulation] {other} together with {name} is not priced: set it to 1")
    if config.serving.mode == "aggregated":
        raise ConfigError(f'{name} is of decode instances, and [serving] mode = "aggregated" has none: set it to 0')
    if scaler.policy != "none" and scaler.decode_step_npus:
        raise ConfigError(
            f"{name} with [autoscaler] decode_step_npus = {scaler.decode_step_npus}: instances that grow by a part are"
            " not priced where experts have dies of their own; set it to 0"
        )


def check_acceptance(config: ServeConfig) -> None:
    """Refuse acceptance rates for fewer positions than there are drafts.

    Raises: ConfigError.
    """
    acceptance, drafts = config.simulation.acceptance, config.simulation.drafts
    if isinstance(acceptance, tuple) and len(acceptance) < drafts:
        raise ConfigError(
            f"[simulation] acceptance has {len(acceptance)} positions, but drafts = {drafts}: give one for each draft"
        )
