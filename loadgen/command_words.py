"""First words of a command line, and Ctrl-C for a command that a script has put into the background.

A shell without job control starts `command &` with SIGINT ignored, and Python then leaves it so: neither `kill -INT`
nor Ctrl-C in that terminal would have an effect.
"""

import difflib
import signal
import threading
from collections.abc import Iterable


def unknown_command(word: str, commands: Iterable[str], program: str) -> str:
    """A line about a word that is no command, with the one that was probably meant."""
    near = difflib.get_close_matches(word, list(commands), n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"there is no command {ascii(word)[1:-1][:40]}; {guess}`{program} --help` lists every COMMAND"


def heed_interrupt() -> None:
    """Let SIGINT raise KeyboardInterrupt, if it was inherited as ignored. Effects: none outside the main thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
