"""Environment variables that a host's Ray must be started with.

Ray reads them in each of its processes, so they must be set before `ray start` on every host. A local start sets them
itself. Does not import Ray.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from serving.config.health import HealthConfig

DASHBOARD_SITE = Path(__file__).resolve().parent.parent / "scaling" / "dashboard" / "site"
"""Path by which Ray's dashboard finds the page `/pools`; see sitecustomize.py there."""

EVERY_HOST = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # An unhealthy replica does not make progress: waiting for it would withhold its NPUs from its replacement.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # A proxy that does not respond is replaced after three misses; by default that takes half a minute.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "3",
    # Ray runs workers at niceness 15, after every other process of the machine; these workers serve requests.
    "RAY_worker_niceness": "0",
    # OpenMP workers may spin some microseconds within a step, but not between steps: they would take CPU time from the
    # gateway and from each other.
    "GOMP_SPINCOUNT": "2000",
}
"""Variables for replicas on any host."""

MANY_HOSTS = {
    # How long a host continues without Ray's head; then its Ray stops, and with it every replica on the host.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "900",
}

STORAGE = ("RAY_REDIS_ADDRESS", "RAY_gcs_storage")
AUTHENTICATION, TLS = "RAY_AUTH_MODE", "RAY_USE_TLS"
TOKEN_FILE, TOKEN = "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_TOKEN"
ADDRESS, DASHBOARD = "RAY_ADDRESS", "RAY_DASHBOARD_ADDRESS"


def health_settings(health: HealthConfig) -> dict[str, int]:
    """Names and values of Ray's own settings for the GCS's health checks of nodes; Ray's unit is milliseconds."""
    return {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": round(health.node_period_s * 1e3),
        "health_check_timeout_ms": round(health.node_timeout_s * 1e3),
        "health_check_failure_threshold": health.node_misses,
    }


def host_environment(health: HealthConfig) -> dict[str, str]:
    """All variables that a host of a cluster needs, except for the dashboard page's path and secrets."""
    return {
        **EVERY_HOST,
        **MANY_HOSTS,
        **{f"RAY_{name}": str(value) for name, value in health_settings(health).items()},
    }


def value_here(name: str) -> str:
    """A variable of this process; empty if unset."""
    return os.environ.get(name, "")


def differing_here(wanted: dict[str, str]) -> tuple[str, ...]:
    """Variables that differ in this process, as `NAME=value` to set."""
    return tuple(f"{name}={value}" for name, value in wanted.items() if os.environ.get(name) != value)


def storage_here() -> str:
    """Storage of the GCS according to the head's environment: `redis`, `rocksdb` or `memory`."""
    redis, kind = (value_here(name) for name in STORAGE)
    return "redis" if redis else kind or "memory"


def export_lines(variables: Iterable[tuple[str, str]]) -> str:
    """Shell lines, one per variable."""
    return "".join(f"export {name}={_quoted(value)}\n" for name, value in variables)


def _quoted(value: str) -> str:
    return value if value.replace("_", "").isalnum() else '"' + value + '"'
