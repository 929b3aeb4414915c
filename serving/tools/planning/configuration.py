"""A plan as a configuration that `simulate` and `serve` read."""

from dataclasses import replace

from serving.config.serve import ServeConfig
from serving.config.write import config_text
from serving.tools.planning import words
from serving.tools.planning.candidate_run import PlanSetting, configured
from serving.tools.planning.plan import CapacityPlan, Option

_SECRETS = "# API keys and other secrets are left out."


def planned(setting: PlanSetting, option: Option) -> ServeConfig:
    """The configuration of a plan: its pools, the requested keys, and memory for pools of these sizes.

    `[decode] ub_memory_mib` grows with the instance, since each of its dies has a cache of its own; a prefill
    instance's dies hold the same.
    """
    asked = setting.config
    config = configured(setting, option.candidate)
    slo = replace(config.slo, attainment=setting.target.attainment)
    if option.candidate.one_pool:
        return replace(config, slo=slo)
    share = config.decode.npus_per_instance / asked.decode.npus_per_instance
    memory = max(1, round(asked.decode.ub_memory_mib * share))
    return replace(config, decode=replace(config.decode, ub_memory_mib=memory), slo=slo)


def planned_text(plan: CapacityPlan) -> str:
    """The best plan's file, with the answer above it; empty without a plan that holds."""
    if plan.config is None:
        return ""
    return f"# {words.headline(plan)}\n# Written by `cloudmatrix plan`.\n{_SECRETS}\n\n{config_text(plan.config)}"
