"""Draws jobs ahead of their time and deals them to the workers, in a thread of its own.

Open loop: by turns, in proportion to the workers' slots, so that each gets its part of the schedule evenly. Closed
loop: to any worker with capacity. A worker that holds enough (jobs or bytes) gets no more until it has started some, so
an endless source never fills the memory.
"""

import threading
import time
from collections.abc import Iterator, Sequence

from loadgen.driver.health import CoreWait
from loadgen.driver.messages import DriveSettings, Mode, NoMoreJobs, Prepare, Supply
from loadgen.driver.worker_process import WorkerProcess
from loadgen.plan import LoadJob

FIRST_JOBS = 256
"""Most jobs per worker that are ready before the run starts."""
FIRST_SCHEDULE_S = 2.0
FIRST_PATIENCE_S = 2.0
"""The run starts with fewer if the jobs arrive too slowly, or if these cover so much of the schedule."""
_LOOK_AGAIN_S = 0.2


class Feeder(threading.Thread):
    """Used once. All public members are thread-safe.

    Attributes:
        error: what drawing the jobs raised, if it did; the workers have then been informed that no more follow.
        jobs: drawn and handed over.
        cpu_s, waited_s: of this thread so far: CPU time, and time for which it had no core.
    """

    def __init__(self, jobs: Iterator[LoadJob], settings: DriveSettings, workers: Sequence[WorkerProcess]) -> None:
        """Not running yet."""
        super().__init__(name="loadgen-feeder", daemon=True)
        self._jobs = jobs
        self._settings = settings
        self._workers = workers
        self._room = threading.Condition()
        self._stopped = False
        self.prepared = False
        """Whether the first supply is complete."""
        self._turns = _turns(settings)
        self.error: Exception | None = None
        self.jobs = 0
        self.cpu_s = 0.0
        self.waited_s = 0.0

    def run(self) -> None:
        """Deal until the jobs are used up or the run stops."""
        core = CoreWait()
        try:
            self._deal(core)
        except Exception as error:
            self.error = error
        finally:
            core.close()
        self._prepare()
        if not self._stopped:
            for worker in self._workers:
                worker.send(NoMoreJobs())

    def wake(self) -> None:
        """A worker has more capacity."""
        with self._room:
            self._room.notify()

    def stop(self) -> None:
        """Draw no more; a job that is being drawn is the last."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def _deal(self, core: CoreWait) -> None:
        begun_s = time.monotonic()
        end_s = self._settings.duration_s
        for job in self._jobs:
            if self._stopped or (job.due_s is not None and end_s is not None and job.due_s >= end_s):
                return
            if not self.prepared and self._enough_to_begin(job, begun_s):
                self._prepare()
            worker = self._wait_for_room()
            if worker is None:
                return
            worker.give(Supply([job]))  # small frames: a worker decodes a whole one at a time
            self.jobs += 1
            self.cpu_s, self.waited_s = time.thread_time(), core.waited_s()

    def _enough_to_begin(self, job: LoadJob, begun_s: float) -> bool:
        if self.jobs < len(self._workers):
            return False
        ahead = job.due_s is not None and job.due_s > FIRST_SCHEDULE_S
        late = time.monotonic() - begun_s > FIRST_PATIENCE_S
        return ahead or late or self.jobs >= FIRST_JOBS * len(self._workers)

    def _prepare(self) -> None:
        if not self.prepared:
            self.prepared = True
            for worker in self._workers:
                worker.send(Prepare())

    def _wait_for_room(self) -> WorkerProcess | None:
        """The worker that gets the next job; None if the run stops."""
        with self._room:
            while not self._stopped:
                worker = self._choose()
                if worker is not None:
                    return worker
                self._prepare()
                self._room.wait(_LOOK_AGAIN_S)
        return None

    def _choose(self) -> WorkerProcess | None:
        alive = [worker for worker in self._workers if not worker.lost]
        if self._settings.mode is Mode.CLOSED:
            best = max(alive, key=lambda worker: worker.room, default=None)
            return best if best is not None and best.room > 0 else None
        worker = self._workers[self._turns[self.jobs % len(self._turns)]]
        return worker if worker.room > 0 and not worker.lost else None


def _turns(settings: DriveSettings) -> list[int]:
    """The order in which an open loop's jobs go to workers: well mixed, each as often as it has slots (at most 64)."""
    workers = range(settings.workers_used())
    slots = [settings.slots_of(worker) or 1 for worker in workers]
    scale = max(1.0, max(slots) / 64)
    shares = [max(1, round(count / scale)) for count in slots]
    return [worker for _, worker in sorted(((turn + 0.5) / shares[w], w) for w in workers for turn in range(shares[w]))]
