"""Workers that are killed or hang, a parent that dies, Ctrl-C: results are kept, and no process survives."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

import loadgen
from loadgen.cli.one_run import stop_on_signals
from loadgen.driver.messages import Mode
from loadgen.driver.progress import Progress
from loadgen.driver.worker_process import BOOT
from loadgen.errors import WorkerLost
from loadgen.record import RequestOutcome
from loadgen.selftest.ceiling import BlastServer, start_blast_server
from tests.loadgen.driver.driving import Run, drive_settings, scheduled, unscheduled


@pytest.fixture(scope="module")
def server() -> Iterator[BlastServer]:
    with start_blast_server("paced", tokens_per_s=200, ttft_s=0.02) as started:
        yield started


def workers_of(pid: int) -> list[psutil.Process]:
    """Worker processes among the children."""
    return [child for child in psutil.Process(pid).children() if "loadgen.driver.worker" in " ".join(child.cmdline())]


def wait_until_gone(processes: list[psutil.Process], deadline_s: float = 15.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=deadline_s)
    assert alive == []


def send_once(run: Run, number: int, after_s: float = 0.3) -> list[psutil.Process]:
    """Send the first worker a signal during the run. Returns: the list that it will be added to."""
    hit: list[psutil.Process] = []

    def interfere(progress: Progress) -> None:
        if progress.now_s > after_s and not hit:
            hit.extend(workers_of(os.getpid()))
            hit[0].send_signal(number)

    run.at_progress = interfere
    return hit


def test_a_killed_worker_ends_the_run_and_the_rest_is_kept(server: BlastServer) -> None:
    run = Run()
    processes = send_once(run, signal.SIGKILL)
    report = run.go(drive_settings(server, Mode.CLOSED, concurrency=4, workers=2), unscheduled())
    assert report.lost_workers == [0]
    assert [health.worker for health in report.workers] == [1]
    assert report.interrupted
    assert "worker 0 was lost (killed by signal 9)" in report.problems[0]
    outcomes = Counter((record.worker, record.outcome) for record in run.records)
    assert outcomes[0, RequestOutcome.OK] > 2
    assert outcomes[1, RequestOutcome.OK] > 2
    wait_until_gone(processes)


def test_a_worker_that_hangs_is_ended(server: BlastServer) -> None:
    run = Run()
    processes = send_once(run, signal.SIGSTOP)
    report = run.go(drive_settings(server, Mode.CLOSED, concurrency=2), unscheduled(), silence_s=0.7)
    assert report.lost_workers == [0]
    assert "stopped responding" in report.problems[0]
    wait_until_gone(processes)


def test_a_worker_that_does_not_end_in_time_is_ended(server: BlastServer) -> None:
    run = Run()
    processes = send_once(run, signal.SIGSTOP)
    settings = drive_settings(server, duration_s=1.0, drain_s=0.1)
    report = run.go(settings, scheduled([0.0, 0.1, 0.9]), grace_s=0.3)
    assert report.lost_workers == [0]
    assert "did not end in time" in report.problems[0]
    wait_until_gone(processes)


def test_a_worker_that_never_starts_is_an_error(server: BlastServer) -> None:
    with pytest.raises(WorkerLost, match="worker 0 did not start: exit status 3"):
        Run().go(drive_settings(server), scheduled([0.0]), boot="raise SystemExit(3)")


def test_no_interpreter_is_an_error(server: BlastServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerLost, match="could not be started"):
        Run().go(drive_settings(server), scheduled([0.0]))


def test_a_worker_that_is_not_ready_in_time_is_an_error(server: BlastServer) -> None:
    with pytest.raises(WorkerLost, match=r"workers \[0\] were not ready"):
        Run().go(drive_settings(server), scheduled([0.0]), boot="import time; time.sleep(60)", ready_s=0.2)
    assert workers_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("d.conclude = None", "TypeError"),  # evaluation fails in the digester
        ("d._Item.read_batch = lambda self: 1 / 0", "ZeroDivisionError"),  # in a callback of the event loop
        ("d.Digester._slice = lambda self, loop: None", "1 answers could not be evaluated in time"),
    ],
)
def test_a_mistake_of_ours_ends_the_run_instead_of_hanging(server: BlastServer, patch: str, words: str) -> None:
    imports = "import loadgen.client.digest as d, loadgen.driver.conductor as c"
    lines = [imports, patch, "c.EVALUATION_DEADLINE_S = 0.2", "main("]
    boot = BOOT.replace("main(", "\n".join(lines))
    report = Run().go(drive_settings(server, drain_s=0.2), scheduled([0.0]), boot=boot)
    assert report.lost_workers == [0]
    assert words in report.problems[0]


def _program(server: BlastServer) -> str:
    """A main program that runs a long closed loop and prints its result."""
    return textwrap.dedent(f"""
        import threading
        from loadgen.cli.one_run import stop_on_signals
        from loadgen.selftest.ceiling import BlastServer
        from tests.loadgen.driver.driving import Run, drive_settings, unscheduled
        from loadgen.driver.messages import Mode
        run = Run()
        run.at_progress = lambda progress: print("tick", progress.finished, flush=True)
        with stop_on_signals(run.stop, run.cut):
            report = run.go(
                drive_settings(BlastServer({server.url!r}, {server.port}, 0, {server.model!r}), Mode.CLOSED,
                    concurrency=4, workers=2), unscheduled(output_tokens=60))
        print("end", report.interrupted, len(report.workers), sorted(set(r.outcome.value for r in run.records)))
    """)


@pytest.fixture
def program(server: BlastServer) -> Iterator["subprocess.Popen[str]"]:
    """The program, in a separate process group as a shell would start it, some time after its first responses."""
    command = [sys.executable, "-c", _program(server)]
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=root)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("tick") and int(line.split()[1]) > 4:
            break
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_reaches_all_but_only_the_main_process_decides(program: "subprocess.Popen[str]") -> None:
    workers = workers_of(program.pid)
    assert len(workers) == 2
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does
    output, _ = program.communicate(timeout=30)
    assert output.splitlines()[-1] == "end True 2 ['ok']"
    assert program.returncode == 0
    wait_until_gone(workers)


def test_a_second_ctrl_c_cuts(program: "subprocess.Popen[str]") -> None:
    os.killpg(program.pid, signal.SIGINT)
    time.sleep(0.05)
    os.killpg(program.pid, signal.SIGINT)
    output, _ = program.communicate(timeout=30)
    assert output.splitlines()[-1] == "end True 2 ['ok', 'unfinished']"


def test_workers_die_with_a_killed_parent(program: "subprocess.Popen[str]") -> None:
    workers = workers_of(program.pid)
    program.kill()
    wait_until_gone(workers)


def test_signals_are_restored_and_other_threads_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop, cut = threading.Event(), threading.Event()
    with stop_on_signals(stop, cut):
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert not cut.is_set()
        signal.raise_signal(signal.SIGINT)
        assert cut.is_set()
    assert signal.getsignal(signal.SIGINT) is before
    seen = []

    def elsewhere() -> None:
        with stop_on_signals(stop, cut):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


_START = "from loadgen.driver.worker_process import WorkerProcess; print(WorkerProcess(0, 1).end())"


def test_a_worker_runs_the_package_of_its_parent(tmp_path: Path) -> None:
    """Not another installed one: of two checkouts the halves of a run would differ."""
    copy = tmp_path / "loadgen"
    shutil.copytree(Path(loadgen.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__", "pictures"))
    (copy / "driver" / "worker.py").write_text("def main(*_):\n    raise SystemExit(17)\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [sys.executable, "-c", _START], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "exit status 17\n", ran.stderr
