#!/usr/bin/env bash
# Kill and freeze processes under load, and prove that no request was affected.
#
# Shows: `cloudmatrix chaos`. It starts a separate system, with two instances of each pool and two memory servers, and
# stops it at the end. Every response is compared, token by token, with that of the same system before the first fault.
#
#   bash examples/chaos.sh                    # two to three minutes; 8 NPUs and more, all virtual
#   bash examples/chaos.sh --seed 3           # other faults; any flag of `cloudmatrix chaos --help`
#
# Expect a schedule of faults with the result for each target, and at the end "nothing lost, nothing different, nothing left
# behind" with exit code 0. report.html in build/chaos shows the time and target of each fault, and the pauses of the streams.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"

cloudmatrix chaos --scenario deploy/chaos/quick.toml --out build/chaos "$@"
