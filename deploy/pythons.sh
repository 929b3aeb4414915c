#!/usr/bin/env bash
# Finds the Pythons on this machine that can run the project; used by `make` and CI.
#
#   deploy/pythons.sh          all on PATH, one per line, the first that works of each version: the active one, which is
#                              what `python3` resolves to, then by version, latest first
#   deploy/pythons.sh PYTHON   whether this one does: its path, or why not and exit status 1
#
# A name on PATH is not enough: pyenv's shims for versions that were not chosen exit 127, Debian without python3-venv
# makes no environments, and torch and Ray have no wheels for PyPy or for builds without a global interpreter lock.
set -euo pipefail

# The versions are defined in pyproject.toml only.
project=$(dirname "${BASH_SOURCE[0]}")/../pyproject.toml
read -r lowest beyond < <(sed -n 's/^requires-python = ">=3\.\([0-9]*\),<3\.\([0-9]*\)"$/\1 \2/p' "$project")

check='
import sys, sysconfig
lowest, beyond = int(sys.argv[1]), int(sys.argv[2])
if not (3, lowest) <= sys.version_info[:2] < (3, beyond):
    sys.exit("Python %d.%d, but 3.%d to 3.%d will do" % (sys.version_info[:2] + (lowest, beyond - 1)))
if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("a build of Python that torch and Ray have no wheels for")
try:
    import ensurepip, venv
except ImportError as error:
    sys.exit("%s; Debian has it in python3.%d-venv" % (error, sys.version_info[1]))
print(sys.version_info[1], sys.executable)
'
look_at() { "$1" -I -c "$check" "$lowest" "$beyond"; } # prints its minor version and its path

if [ "$#" -gt 0 ]; then
    if found=$(look_at "$1" 2>&1); then
        echo "${found#* }"
        exit
    fi
    echo "$1 cannot be used: $found" >&2
    exit 1
fi

names=()
for ((minor = beyond - 1; minor >= lowest; minor--)); do names+=("python3.$minor"); done
look_quietly() { look_at "$1" < /dev/null 2> /dev/null || true; }
# An activated environment, of venv, conda or pyenv, selects the one to use.
active=$(type -P python3 || true)
found=$({
    [ -z "$active" ] || look_quietly "$active"
    { type -aP "${names[@]}" python3 || true; } | while read -r path; do look_quietly "$path"; done | sort -s -k1,1nr
} | awk '!seen[$1]++' | cut -d' ' -f2-)
if [ -z "$found" ]; then
    echo "no Python 3.$lowest to 3.$((beyond - 1)) with venv is on PATH: on Debian, install python3 and python3-venv" >&2
    exit 1
fi
echo "$found"
