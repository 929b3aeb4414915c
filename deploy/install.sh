#!/usr/bin/env bash
# Installs torch, then the project and its other dependencies, into an environment. `make` calls it.
#
#   deploy/install.sh PYTHON LOG [EXTRAS]    the environment's interpreter; EXTRAS as pyproject.toml names them: test,docs
#   deploy/install.sh PYTHON LOG docs        only what builds the site, which needs neither torch nor the project
#
# TORCH_PIP_ARGS, PIP_ARGS and CONSTRAINTS are the Makefile's. Prints one line per phase, with its seconds and what it added to
# the environment; the output of pip is written to LOG, whose end is shown if a phase fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 log=$2 extras=${3:-}
torch=$(sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
# As a shell reads them: an argument may be quoted.
eval "torch_args=(${TORCH_PIP_ARGS:-}) pip_args=(${PIP_ARGS:-})"
pinned=()
[ -z "${CONSTRAINTS:-}" ] || pinned=(-c "$CONSTRAINTS")

environment=$(dirname "$(dirname "$python")")
scratch=$(mktemp -d) # for what is downloaded, so that its size can be shown
export TMPDIR=$scratch
trap 'rm -rf "$scratch"' EXIT
megabytes() { du -scm "$environment" "$scratch" | tail -n 1 | cut -f1; }

phase() { # its name, then a command
    local name=$1 begun=$SECONDS before ticker="" code=0
    shift
    before=$(megabytes)
    if [ -t 1 ]; then # a line that shows how it goes on
        { while sleep 3; do printf '\r%s ... %d s, %d MB' "$name" $((SECONDS - begun)) $(($(megabytes) - before)); done; } &
        ticker=$!
    fi
    printf '%s ... ' "$name"
    "$@" >> "$log" 2>&1 || code=$?
    [ -z "$ticker" ] || { kill "$ticker"; printf '\r%s ... ' "$name"; }
    if [ "$code" != 0 ]; then
        echo "failed after $((SECONDS - begun)) s"
        return "$code"
    fi
    echo "$((SECONDS - begun)) s, $(($(megabytes) - before)) MB"
}

pip() {
    "$python" -m pip install --disable-pip-version-check "${pip_args[@]}" "$@"
}

end_of_log() {
    { echo "The end of $log:" && tail -n 15 "$log"; } >&2
    exit 1
}

# PyPI's torch for x86 brings CUDA's libraries. uv knows where PyTorch keeps its CPU wheels; it is used for that and is not kept.
cpu_torch() {
    local code=0
    pip --target "$scratch/uv" "uv>=0.9" \
        && UV_NO_CACHE=1 UV_HTTP_TIMEOUT=20 "$scratch/uv/bin/uv" pip install --python "$python" --torch-backend cpu "$torch" || code=$?
    rm -rf "$scratch/uv"
    return "$code"
}

mkdir -p "$(dirname "$log")"
: > "$log"
trap 'echo; exit 130' INT
echo "Installing into $environment (once; several minutes on a slow line; what is installed is in $log)"
if [ "$extras" = docs ]; then
    mapfile -t packages < <(sed -n '/^docs = \[/,/^\]/s/^ *"\([^"]*\)".*/\1/p' pyproject.toml)
    phase "1 of 1: MkDocs" pip "${pinned[@]}" "${packages[@]}" || end_of_log
    exit
fi
if [ -z "${TORCH_PIP_ARGS:-}" ] && [ "$(uname -m)" = x86_64 ] && ! type -P nvidia-smi > /dev/null; then
    phase "1 of 2: torch, its CPU build" cpu_torch || {
        cat << 'END'
There is no NVIDIA GPU here, but PyTorch's CPU wheels cannot be reached: torch comes from pip's own index. PyPI's brings CUDA's
libraries, 5.3 GB on disk instead of 1.5 GB. To save that, interrupt this and name a mirror of the CPU wheels:
make serve TORCH_PIP_ARGS="--index-url ADDRESS"
END
        phase "1 of 2: torch" pip "$torch" || end_of_log
    }
else
    phase "1 of 2: torch" pip "${torch_args[@]}" "$torch" || end_of_log
fi
phase "2 of 2: everything else" pip "${pinned[@]}" -e ".${extras:+[$extras]}" || end_of_log
