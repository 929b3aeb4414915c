#!/usr/bin/env bash
# How many NPUs does DeepSeek-V3.1 W8A8 on vLLM-Ascend need for a load, and how should they be split between prefill and decode?
#
# Shows: `cloudmatrix plan` with the profile of an engine that people run, and a trace of one's own in the plainest form: CSV
# with arrival_s, prompt_tokens, output_tokens. Each candidate is simulated; the answer is the cheapest that keeps the limits,
# how much more load it carries, what it keeps when an NPU, a node, an instance is lost, and what tokens cost by your prices.
#
#   bash examples/plan.sh [FOLDER]            # a minute or two; no system needs to run; FOLDER gets plan.html
#
# Expect a table of candidates with the best one first, and a sentence for each other one that says why it loses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Nine requests a second for a minute, of 3.5k tokens in and 1.5k out: a little less than what is published for such a service
# on 2 x 8 + 1 x 16 NPUs. Replace this by the log of a system that you know. DeepSeek-V3.1 has the shape of R1, whose the configuration is.
{
    echo arrival_s,prompt_tokens,output_tokens
    awk 'BEGIN { for (i = 0; i < 540; i++) print i / 9 "," 3000 + (i * 977) % 1000 "," 1250 + (i * 311) % 500 }'
} > "$folder/trace.csv"

cloudmatrix plan --config deploy/cloudmatrix384.toml --engine vllm-ascend --trace "$folder/trace.csv" \
    --least --ttft 6s --tpot 50ms --sizes-prefill 8,16 --sizes-decode 16,32 --batch 24 --step-tokens 4096 \
    --headroom --losses --prices examples/prices.toml --out "${1:-$folder}"
