"""When this process began to import a replica's code; the module of a replica imports this one before what takes long.

Nothing else does, so that in a process that Ray has used for other things before it still tells the replica's own time.
"""

import time

IMPORTING_SINCE = time.monotonic()
