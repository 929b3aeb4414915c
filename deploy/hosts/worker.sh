#!/usr/bin/env bash
# A host of the cluster whose head is at HEAD_ADDRESS, in the foreground; it waits for a head that is not running yet.
#
#   HEAD_ADDRESS=10.0.0.1:6379 deploy/hosts/worker.sh
#
# Other settings: environment.sh, and deploy/RUNBOOK.md.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec ray start --address="${HEAD_ADDRESS:?set it to HOST:PORT of the head}" --block --disable-usage-stats \
    --resources="$resources" "${cpus[@]}" "${ports[@]}"
