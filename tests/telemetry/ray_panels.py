"""Panels of the board for Serve LLM that the installed Ray has, as queries."""

import re

from ray.dashboard.modules.metrics.dashboards.serve_llm_dashboard_panels import serve_llm_dashboard_config

_SERIES = re.compile(r"\bray_(?:vllm|serve)_\w+")
_VARIABLES = {"$vllm_model_name": ".*", "$workerid": ".*", "$deployment": ".*", "$interval": "1m"}

WITHOUT_MEANING = {
    "ray_vllm_num_requests_swapped": "sequences are never swapped out, as in vLLM's own engine since V1",
    "ray_vllm_nixl_post_time_seconds_sum": "a pull is one exchange: nothing is posted before it",
    "ray_vllm_nixl_post_time_seconds_count": "a pull is one exchange: nothing is posted before it",
    "ray_vllm_kv_offload_cpu_cache_usage_perc": "the pool's memory is in its servers: no instance has a share to pin",
    "ray_vllm_kv_offload_cpu_cache_write_usage_perc": "as the usage",
    "ray_vllm_kv_offload_cpu_cache_read_usage_perc": "as the usage",
}
"""Series that the board queries and this system cannot fill truthfully, and why."""


def queries() -> dict[str, str]:
    """Every query of the board, by panel and number."""
    found = {}
    for row in serve_llm_dashboard_config.rows:
        for panel in row.panels:
            for number, target in enumerate(panel.targets):
                query = target.expr.format(global_filters="")
                for name, value in _VARIABLES.items():
                    query = query.replace(name, value)
                found[f"Serve LLM: {panel.title}: {number}"] = query
    return found


def series() -> set[str]:
    """Series that the board queries."""
    return {name for query in queries().values() for name in _SERIES.findall(query)}
