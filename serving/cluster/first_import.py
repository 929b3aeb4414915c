"""Time at which this process started to import a replica's code; replica modules import it before slow modules.

No other module imports it, so the time is correct also in a process that Ray used for other work before.
"""

import time

IMPORTING_SINCE = time.monotonic()
