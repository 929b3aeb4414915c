"""A small process next to the launcher that cleans up this machine if the launcher is killed.

It uses only the standard library. It ignores signals of a terminal, which are meant for the launcher; the launcher may
need a while to stop all processes itself.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LAST_WORDS_S = 8.0
"""Time within which replicas detect the end of their node and end too [s]; until then they may still create files."""
PERIOD_S = 0.5
DISMISS_S = 2.0
"""Deadline for a process that only has to read four bytes and exit."""
_DONE = b"done"


class Reaper:
    """The launcher's side.

    Args:
        prefixes: of files that belong to this start only, including their folders.
        folder: folder to remove as well.
    Effects: starts a process in a session of its own, which a terminal's signals do not reach.
    """

    def __init__(self, prefixes: Sequence[Path], folder: Path) -> None:
        self._command = [sys.executable, "-I", "-S", __file__, str(folder), *map(str, prefixes)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        silent = subprocess.DEVNULL
        return subprocess.Popen(
            self._command, bufsize=0, stdin=subprocess.PIPE, stdout=silent, stderr=silent, start_new_session=True
        )

    def tend(self) -> bool:
        """Reap and restart the process if it has exited. Returns: whether it had.

        Raises: OSError if no process can be started; retry later.
        """
        if self._process.poll() is None or self._process.stdin is None or self._process.stdin.closed:
            return False
        ended, self._process = self._process, self._start()
        if ended.stdin is not None:
            ended.stdin.close()
        return True

    def dismiss(self) -> None:
        """Report that no files are left to remove, and wait until the process has exited. Safe to call twice.

        Effects: a frozen process is killed.
        """
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            return
        try:
            self._process.communicate(_DONE, timeout=DISMISS_S)  # ignores a broken pipe, as of a killed reader
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def remove(folder: Path, prefixes: Sequence[Path]) -> None:
    """Remove the files and the folder that exist now."""
    for prefix in prefixes:
        for path in prefix.parent.glob(f"{prefix.name}*"):
            path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def main(folder: Path, prefixes: Sequence[Path]) -> None:
    """Wait for the launcher's end, at which the kernel closes the pipe, and remove the files that it left."""
    if sys.stdin.buffer.read() == _DONE:
        return
    end = time.monotonic() + LAST_WORDS_S
    while time.monotonic() < end:
        remove(folder, prefixes)
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
