# Sourced by head.sh and worker.sh: what Ray's processes on every host must find in their environment before Ray starts.
# Values that are set already stay.

# Ray runs workers at niceness 15, behind every other process of the machine; these ones serve.
export RAY_worker_niceness="${RAY_worker_niceness:-0}"
# OpenMP workers that spin between steps would take the cores from the gateway and from each other.
export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-2000}"
# An unhealthy replica is one that does not move: to wait for it would keep its NPUs from its replacement.
export RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS="${RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS:-1}"
export RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S="${RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S:-1}"
export RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="${RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S:-3}"
# A worker goes on without the head for this long; a head that keeps its state in Redis comes back meanwhile.
export RAY_gcs_rpc_server_reconnect_timeout_s="${RAY_gcs_rpc_server_reconnect_timeout_s:-600}"
# Who may talk to Ray: everybody who knows the token in this file.
if [ -n "${RAY_AUTH_TOKEN_PATH:-}" ]; then
    export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
fi
# Virtual NPUs and what they share; a host with 0 NPUs takes gateways and memory servers only.
NPUS="${NPUS:-8}" UB_MEMORY_MIB="${UB_MEMORY_MIB:-2048}"
resources="{\"NPU\": $NPUS, \"UB_MEMORY\": $UB_MEMORY_MIB}"
# Every port that other hosts need to reach, so that a firewall can be told.
ports=(
    --node-manager-port="${NODE_MANAGER_PORT:-6380}" --object-manager-port="${OBJECT_MANAGER_PORT:-6381}"
    --runtime-env-agent-port="${RUNTIME_ENV_AGENT_PORT:-6382}" --dashboard-agent-grpc-port="${AGENT_GRPC_PORT:-6383}"
    --dashboard-agent-listen-port="${AGENT_PORT:-52365}" --metrics-export-port="${RAY_METRICS_PORT:-8085}"
    --min-worker-port="${MIN_WORKER_PORT:-20000}" --max-worker-port="${MAX_WORKER_PORT:-20999}"
)
# The address under which the others find this host; without it Ray takes that of the way to the internet.
[ -z "${HOST_ADDRESS:-}" ] || ports+=(--node-ip-address="$HOST_ADDRESS")
