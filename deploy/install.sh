#!/usr/bin/env bash
# Installs torch, then the project and its other dependencies, into an environment. `make` calls it.
#
#   deploy/install.sh PYTHON LOG [EXTRAS]    the environment's interpreter; EXTRAS as pyproject.toml names them: test,docs
#   deploy/install.sh PYTHON LOG docs        only what builds the site, which needs neither torch nor the project
#
# TORCH_PIP_ARGS, PIP_ARGS and CONSTRAINTS are the Makefile's. Prints one line per phase; pip's output is written to LOG, whose
# end is shown if a phase fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 log=$2 extras=${3:-}
torch=$(sed -n 's/^ *"\(torch==[^"]*\)".*/\1/p' pyproject.toml)
# As a shell reads them: an argument may be quoted.
eval "torch_args=(${TORCH_PIP_ARGS:-}) pip_args=(${PIP_ARGS:-})"
pinned=()
[ -z "${CONSTRAINTS:-}" ] || pinned=(-c "$CONSTRAINTS")

if [ "$extras" != docs ] && [ -z "${TORCH_PIP_ARGS:-}" ] && [ "$(uname -m)" = x86_64 ] && ! type -P nvidia-smi > /dev/null; then
    cat << 'END'
There is no NVIDIA GPU here, and PyPI's torch for x86 brings CUDA's libraries: 5.3 GB on disk instead of 1.5 GB, and the
download of them. To save that, interrupt this and give the address of PyTorch's CPU wheels, which PyTorch's page
"Get Started" shows for Linux, Pip and CPU:  make serve TORCH_PIP_ARGS="--index-url ADDRESS"
END
fi

phase() { # its name, then arguments for pip
    local name=$1 begun=$SECONDS
    shift
    printf '%s ... ' "$name"
    if ! "$python" -m pip install --disable-pip-version-check "${pip_args[@]}" "$@" >> "$log" 2>&1; then
        echo "failed after $((SECONDS - begun)) s"
        { echo "The end of $log:" && tail -n 15 "$log"; } >&2
        exit 1
    fi
    echo "$((SECONDS - begun)) s"
}

mkdir -p "$(dirname "$log")"
: > "$log"
trap 'echo; exit 130' INT
echo "Installing into $(dirname "$(dirname "$python")") (once; several minutes on a slow line; what pip says is in $log)"
if [ "$extras" = docs ]; then
    mapfile -t packages < <(sed -n '/^docs = \[/,/^\]/s/^ *"\([^"]*\)".*/\1/p' pyproject.toml)
    phase "1 of 1: MkDocs" "${pinned[@]}" "${packages[@]}"
    exit
fi
phase "1 of 2: torch" "${torch_args[@]}" "$torch"
phase "2 of 2: everything else" "${pinned[@]}" -e ".${extras:+[$extras]}"
