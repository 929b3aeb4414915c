"""Prints the folder that adds the page `/pools` to the dashboard of a self-managed Ray cluster:

    PYTHONPATH=$(python -m serving.scaling.dashboard) ray start --head

`cloudmatrix serve` and the container image set it themselves.
"""

from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"

if __name__ == "__main__":
    print(SITE)
