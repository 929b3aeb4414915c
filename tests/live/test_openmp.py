"""OpenMP workers of a thread that has finished end, and are created again on demand."""

import threading
from pathlib import Path

import torch

from serving.instance.live.compute_model import end_idle_workers


def tasks() -> set[str]:
    return {entry.name for entry in Path("/proc/self/task").iterdir()}


def test_idle_workers_end_and_come_again() -> None:
    found: list[int] = []

    def work() -> None:
        values = torch.randn(4, 300_000)
        torch.set_num_threads(3)
        for _ in range(2):
            before = tasks()
            torch.exp(values).sum()
            found.append(len(tasks() - before))
            assert end_idle_workers()
            found.append(len(tasks() - before))

    threads = torch.get_num_threads()
    thread = threading.Thread(target=work)
    try:
        thread.start()
        thread.join()
    finally:
        torch.set_num_threads(threads)
    assert found == [2, 0, 2, 0]
