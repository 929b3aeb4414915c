"""Ctrl-C for commands that a script has put into the background.

A shell without job control starts `command &` with SIGINT ignored, and Python then leaves it so: `kill -INT` would do
nothing, and neither would Ctrl-C in that terminal.
"""

import signal
import threading


def heed_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt, if it was inherited as ignored. Effects: none outside the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
