"""Runs mypyc, in a process of its own and in a folder of copied sources: `worker.py OPTIMIZE JOBS FILE...`."""

import sys

from mypyc.build import mypycify
from setuptools import setup

FLAGS = ["--config-file=", "--ignore-missing-imports"]
"""For mypy: the caller's settings do not apply, and third parties need no types."""


def main() -> None:
    """Compile the files, each next to its source. Effects: writes the working directory."""
    optimize, jobs, *files = sys.argv[1:]
    setup(
        name="compiled-modules",
        packages=[],
        py_modules=[],
        ext_modules=mypycify([*FLAGS, *files], opt_level=optimize, debug_level="0", multi_file=True),
        script_args=["build_ext", "--inplace", f"--parallel={jobs}"],
    )


if __name__ == "__main__":
    main()
