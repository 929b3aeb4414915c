"""The one environment variable of this project: API keys, as orchestrators hand secrets to a container.

Read at the edge, once, and taken out: no process that is started later inherits it.
"""

import os

from serving.config.key_file import VARIABLE


def take_keys() -> str | None:
    """Value of the variable, or None if it is not set. Effects: removes it from this process's environment."""
    return os.environ.pop(VARIABLE, None)
