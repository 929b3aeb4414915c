"""Prints the folder that makes a Ray cluster of one's own show the page `/pools`:

    PYTHONPATH=$(python -m serving.scaling.dashboard) ray start --head

`cloudmatrix serve` and the container image need no such thing: they set it themselves.
"""

from pathlib import Path

SITE = Path(__file__).resolve().parent / "site"

if __name__ == "__main__":
    print(SITE)
