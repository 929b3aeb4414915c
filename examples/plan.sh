#!/usr/bin/env bash
# How many NPUs does a load need, and how should they be split between prefill and decode?
#
# Shows: `cloudmatrix plan`, with a trace of one's own in the plainest form: CSV with arrival_s, prompt_tokens,
# output_tokens. Each candidate is simulated; the answer is the cheapest that keeps the limits, how much more load it
# carries, and what it keeps when an NPU, a node, an instance is lost, and what
# tokens cost by your prices.
#
#   bash examples/plan.sh [FOLDER]            # seconds to a minute; no system needs to run; FOLDER gets plan.html
#
# Expect a table of candidates with the best one first, and a sentence for each other one that says why it loses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Twenty requests a second for twenty seconds; replace this by the log of a system that you know.
{
    echo arrival_s,prompt_tokens,output_tokens
    awk 'BEGIN { for (i = 0; i < 400; i++) print i / 20 "," 1000 + (i * 977) % 7000 "," 50 + (i * 31) % 200 }'
} > "$folder/trace.csv"

cloudmatrix plan --config deploy/cloudmatrix384.toml --trace "$folder/trace.csv" --least --ttft 1s --tpot 50ms \
    --sizes-prefill 16,32 --sizes-decode 32 --batch 48 --step-tokens 16384 --headroom --losses \
    --prices examples/prices.toml --out "${1:-$folder}"
