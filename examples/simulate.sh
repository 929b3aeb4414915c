#!/usr/bin/env bash
# One minute of load on a simulated supernode, once undisturbed and once with its only decode instance lost.
#
# Shows: `cloudmatrix simulate`. Gateway, router, scheduler and KV-cache pool decide as in the live system; only time is
# virtual, computed by the cost model of the Ascend 910C. The same seed gives the same output bytes.
#
#   bash examples/simulate.sh                 # some seconds; no system needs to run
#
# Expect two summaries. In both every request finishes. In the second the prefill instances also decode from second 20 on,
# since a restart takes 83 s: mean TPOT rises from 13 to 29 ms, some requests are sent again, and the last table has the cost.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

load=(--config deploy/cloudmatrix384.toml --poisson 3 --duration 1min --prompt 4096 --output 128 --seed 1)
cloudmatrix simulate "${load[@]}" --quiet

# Prefill fills the nodes n0 to n11, the decode instance n12 to n31: with any of them the whole instance is lost.
cat > "$folder/faults.toml" << 'TOML'
[[fault]]
at_s = 20
kind = "node"
target = "n20"
TOML
cloudmatrix simulate "${load[@]}" --faults "$folder/faults.toml" --quiet
