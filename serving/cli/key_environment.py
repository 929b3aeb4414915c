"""The one environment variable of this project: API keys, in the way that orchestrators pass secrets to a container.

Read once and removed, so that child processes do not inherit it.
"""

import os

from serving.config.gateway import VARIABLE


def take_keys() -> str | None:
    """Value of the variable, or None if unset. Effects: removes it from this process's environment."""
    return os.environ.pop(VARIABLE, None)
