"""An interrupt while the pools start, wherever it strikes, ends with the exit code that the launcher gives."""

import subprocess
import sys

_SCRIPT = """
import os, signal, threading
from serving.deployments.launch import Interrupt

interrupt = Interrupt()
interrupt.install()
interrupt.raise_now()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    exec("while True: pass")  # as it is while a dataclass is made
except KeyboardInterrupt:
    pass
"""


def test_an_interrupt_inside_exec() -> None:
    assert subprocess.run([sys.executable, "-c", _SCRIPT], timeout=50, check=False).returncode == 0
