"""Text for people at the start of a system: addresses, keys, commands to copy."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from serving.cluster.membership import CALL_DEADLINE_S, membership
from serving.config.checks import replicas_at_start
from serving.config.packing import can_pack
from serving.config.serve import ServeConfig
from serving.launch.deploying import Cluster, endpoint
from serving.scaling.dashboard.once import issue
from serving.terminal import own_command


def banner(config: ServeConfig, cluster: Cluster, url: str | None = None, computing: str = "") -> str:
    """Text printed after the start: what computes, addresses, the token, logs, commands to copy.

    Args:
        url: of a gateway; by default its address on this machine.
        computing: name and speed of the compute device; empty = unknown.
    """
    key = ' \\\n  -H "Authorization: Bearer $API_KEY"' if config.api_keys_required else ""
    name = config.model.name or Path(config.model.path).name
    url = url or endpoint(config)
    computed = f"  computed by      {computing}\n" if computing else ""
    page = "" if key else f"  chat page        {url}\n"  # a browser has no API key to send
    return f"""
  endpoint         {url}/v1   (model: {name})
{computed}{_placeholder_line(config)}{_pool_line(config)}{page}{_pools_page_line(cluster)}{_dashboard_lines(cluster)}
Try, in a second terminal:
{_commands(config, cluster, url)}
curl {url}/v1/chat/completions{key} \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{name}", "stream": true, "max_tokens": 120,
       "messages": [{{"role": "user", "content": "Tell me a story about a little dog and a ball."}}]}}'
"""


def one_more(config: ServeConfig) -> str:
    """Example arguments for scaling: one more replica of the last pool that has NPUs and UB memory for it, if any."""
    pools, at_start = config.pools, replicas_at_start(config)

    def grows(name: str) -> bool:
        if config.autoscaler.nodes == "ray":
            return pools[name].replicas < config.autoscaler.bounds(name)[1]
        more = [replace(need, replicas=need.replicas + (need.name == name)) for need in at_start]
        return can_pack(more, config.cluster.nodes)

    growing = [name for name in pools if grows(name)]
    name = [*pools, *growing][-1]
    return f"{name} {pools[name].replicas + (name in growing)}"


def _pool_line(config: ServeConfig) -> str:
    pool = config.kvcache
    if not pool.replicas:
        return ""
    servers = f"{pool.replicas} memory server{'s' * (pool.replicas > 1)}"
    disk = f" + {pool.ssd_mib} MiB on disk" if pool.ssd_mib else ""
    return f"  KV-cache pool    {servers}, {pool.ub_memory_mib} MiB{disk}{' each' * (pool.replicas > 1)}\n"


def _pools_page_line(cluster: Cluster) -> str:
    """Line for the pools' page, with a one-time link if the token belongs to this start."""
    page, token = f"  pools page       {cluster.dashboard_url}/pools", cluster.session.token
    return f"{page}{f'#once={issue(token, time.time())}' if token else _where(cluster)}\n"


def _dashboard_lines(cluster: Cluster) -> str:
    """Lines for Ray's dashboard; for a start of this machine also its token and logs."""
    dashboard, token = f"  Ray dashboard    {cluster.dashboard_url}{_where(cluster)}\n", cluster.session.token
    own = f"  dashboard token  {token}\n  logs             {own_command()} logs -f   (files: {cluster.logs})\n"
    return dashboard + own * bool(token)


def _commands(config: ServeConfig, cluster: Cluster, url: str) -> str:
    """Three commands to copy. Those of the same user find the addresses of a start of this machine."""
    command, own = own_command(), bool(cluster.session.token)
    key = " --api-key $API_KEY" if config.api_keys_required else ""
    gateway = key if own else f" --url {url}{key}"
    dashboard = "" if own else f" --dashboard {cluster.dashboard_url}{cluster.token_flag}{_where(cluster)}"
    return f"""\
  {command} chat{gateway} "Tell me a story about a little dog and a ball."
  {command} status{gateway}
  {command} scale {one_more(config)}{dashboard}
"""


def _where(cluster: Cluster) -> str:
    """Comment after a dashboard address that only another host reaches; a comment, since commands are copied."""
    return f"  # on {cluster.dashboard_place} only" if cluster.dashboard_place else ""


def _placeholder_line(config: ServeConfig) -> str:
    if config.engine.executor != "simulated":
        return ""
    from hardware.cost.trust import engine_text_of, expected  # only simulated systems need it
    from serving.config.simulated_cost import simulated_cost

    cost = simulated_cost(config)
    text = "  tokens           placeholders: simulated NPUs take the time of the model and compute no text\n"
    text += f"  steps of         {engine_text_of(cost)}\n"
    return f"{text}  accuracy         {expected(cost)}\n"


# Names and speeds of the compute devices of a system's instances, for the text printed at a start.

logger = logging.getLogger(__name__)


def computing_line(facts: Iterable[Mapping[str, Any]]) -> str:
    """Name of the compute device, with the speed of its slowest instance; empty if no instance announces it.

    Args:
        facts: announced by instances.
    """
    speeds: dict[str, list[float]] = {}
    for one in facts:
        if (name := one.get("computes")) is not None:
            speeds.setdefault(name, []).extend(filter(None, [one.get("probe_tokens_per_s")]))
    return "; ".join(
        f"{name}{f', {min(rates):,.0f} tokens/s for one request' if rates else ''}"
        for name, rates in sorted(speeds.items())
    )


def computing_here() -> str:
    """`computing_line` of the system on the connected Ray; empty if no gateway responds."""
    try:
        members = ray.get(membership().members.remote(), timeout=CALL_DEADLINE_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        logger.info("membership does not respond (%s)", type(error).__name__)
        return ""
    return computing_line(member.facts for member in members)
