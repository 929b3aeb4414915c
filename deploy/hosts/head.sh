#!/usr/bin/env bash
# Ray's head on this host, in the foreground: systemd, Compose or a terminal keeps it running and restarts it.
#
#   CPUS=0 NPUS=0 UB_MEMORY_MIB=0 deploy/hosts/head.sh    no serving process is lost with it
#
# Other settings: environment.sh, and deploy/RUNBOOK.md.
#
# With RAY_REDIS_ADDRESS=HOST:PORT the cluster's state is in Redis: an empty head continues from the lost one's state.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
# Configuration of Ray's own autoscaler, such as offline-autoscaler.yaml.
[ -z "${AUTOSCALING_CONFIG:-}" ] || ports+=(--autoscaling-config="$AUTOSCALING_CONFIG")
exec ray start --head --block --disable-usage-stats --resources="$resources" "${cpus[@]}" "${ports[@]}" \
    --port="${HEAD_PORT:-6379}" --dashboard-host="${DASHBOARD_HOST:-127.0.0.1}" --dashboard-port="${DASHBOARD_PORT:-8265}"
