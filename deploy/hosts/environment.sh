# Sourced by head.sh and worker.sh: the environment for Ray on every host, and the flags of `ray start`.

# Ray requires the token in this file from every client; RAY_AUTH_MODE=disabled admits all clients that reach its ports.
token=(--token-file "${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}")
[ "${RAY_AUTH_MODE:-token}" != disabled ] || token=(--no-token)
variables=$(cloudmatrix node-env "${token[@]}")
eval "$variables"
# Virtual NPUs and their UB memory. A host without NPUs runs memory servers, and gateways unless it has no CPUS either.
NPUS="${NPUS:-8}" UB_MEMORY_MIB="${UB_MEMORY_MIB:-2048}"
resources="{\"NPU\": $NPUS, \"UB_MEMORY\": $UB_MEMORY_MIB}"
cpus=()
[ -z "${CPUS:-}" ] || cpus=(--num-cpus="$CPUS")
# Every port that other hosts need to reach, for firewall rules.
ports=(
    --node-manager-port="${NODE_MANAGER_PORT:-6380}" --object-manager-port="${OBJECT_MANAGER_PORT:-6381}"
    --runtime-env-agent-port="${RUNTIME_ENV_AGENT_PORT:-6382}" --dashboard-agent-grpc-port="${AGENT_GRPC_PORT:-6383}"
    --dashboard-agent-listen-port="${AGENT_PORT:-52365}" --metrics-export-port="${RAY_METRICS_PORT:-8085}"
    --min-worker-port="${MIN_WORKER_PORT:-20000}" --max-worker-port="${MAX_WORKER_PORT:-20999}"
)
# The address under which the others find this host; without it Ray uses the address of the default route.
[ -z "${HOST_ADDRESS:-}" ] || ports+=(--node-ip-address="$HOST_ADDRESS")
