#!/usr/bin/env bash
# Grow and shrink a pool by hand, and print the reason for each change.
#
# Shows: `cloudmatrix scale`, `status`, `decisions`. Streams on an instance that is removed continue on another one.
#
#   make serve                                # in another terminal; the decode pool has one instance and capacity for one more
#   bash examples/scale.sh                    # or: bash examples/scale.sh http://127.0.0.1:9000
#
# Expect the decode pool at 1, then at 2 a few seconds later, then at 1 again, and both changes in the list of decisions,
# with their origin. The autoscaler, if it is on, does not resize the pool for a minute after each change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
url=${1:-http://127.0.0.1:8000}

cloudmatrix status --url "$url"
cloudmatrix scale decode 2 --hold 1m --wait
cloudmatrix status --url "$url"
cloudmatrix scale decode 1 --hold 1m --wait
cloudmatrix decisions --last 4
