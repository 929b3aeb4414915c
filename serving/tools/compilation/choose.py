"""Whether a simulation runs compiled."""

from serving import compiled
from serving.errors import ConfigError
from serving.tools.compilation.build import current


def prefer_compiled() -> bool:
    """Use the build of these sources, if one exists; to be called before the simulator is imported.

    Returns: whether it is used.
    Effects: see `compiled.use`.
    """
    try:
        folder = current()
    except ConfigError:
        return False  # no build can exist
    return folder.is_dir() and compiled.use(folder)
