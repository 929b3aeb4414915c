"""Ctrl-C and `kill -INT` end a command that a script has put into the background, where SIGINT is ignored."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BACKGROUND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
SERVING = """
import argparse, time
from serving.cli import command_line
def run(_):
    print("begun", flush=True)
    time.sleep(60)
sys_exit = command_line._run(argparse.Namespace(run=run))
raise SystemExit(sys_exit)
"""
LOADING = """
import sys, time
from loadgen.cli import main
class Command:
    def add_flags(self, parser): pass
    def run(self, flags):
        print("begun", flush=True)
        time.sleep(60)
main._load = lambda name: Command()
raise SystemExit(main.main(["selftest"]))
"""


@pytest.mark.parametrize("program", [SERVING, LOADING])
def test_a_command_in_the_background_of_a_script_heeds_it(program: str) -> None:
    command = [sys.executable, "-c", BACKGROUND, "-c", program]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "interrupted" in said
    assert time.monotonic() - began < 45
