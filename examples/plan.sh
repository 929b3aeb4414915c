#!/usr/bin/env bash
# How many NPUs does DeepSeek-V3.1 W8A8 on vLLM-Ascend need for a load, and how should they be split between prefill and decode?
#
# Shows: `cloudmatrix plan` with the profile of a widely used engine, and a custom trace in the simplest form: CSV
# with arrival_s, prompt_tokens, output_tokens. Each candidate is simulated; the result is the cheapest one within the limits,
# the additional load that it supports, what remains after the loss of an NPU, a node or an instance, and the cost of tokens.
#
#   bash examples/plan.sh [FOLDER]            # a minute or two; no system needs to run; FOLDER gets plan.html
#
# Expect a table of candidates with the best first, and for each other candidate a sentence with the reason why it is worse.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Nine requests per second for a minute, with 3.5k tokens in and 1.5k out: slightly less than published for such a service
# on 2 x 8 + 1 x 16 NPUs. Replace this with the log of your system. DeepSeek-V3.1 has the shape of R1, whose configuration is used.
{
    echo arrival_s,prompt_tokens,output_tokens
    awk 'BEGIN { for (i = 0; i < 540; i++) print i / 9 "," 3000 + (i * 977) % 1000 "," 1250 + (i * 311) % 500 }'
} > "$folder/trace.csv"

cloudmatrix plan --config deploy/cloudmatrix384.toml --engine vllm-ascend --trace "$folder/trace.csv" \
    --least --ttft 6s --tpot 50ms --sizes-prefill 8,16 --sizes-decode 16,32 --batch 24 --step-tokens 4096 \
    --headroom --losses --prices examples/prices.toml --out "${1:-$folder}"
