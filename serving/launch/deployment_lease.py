"""One deployment at a time: a lease in Ray's control store, which expires at most `LEASE_S` after its deployer's death.

    deployments/000000007    claim of the 7th deployment: author, configuration, stage, whether it has ended

The claim with the highest number holds the lease. The control store gives a number to one deployer only; the next
number may be claimed when the previous claim has ended, or has not been renewed for `LEASE_S`. Each reader measures
that time on its own clock, because clocks of hosts differ.
"""

import getpass
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import msgspec

from hardware.nesting import parse_json
from serving.errors import UNREADABLE, SilentError

PREFIX = "deployments/"
LEASE_S = 30.0
RENEW_S = 5.0
"""Renewal interval; on a busy machine up to five renewals may be late."""
POLL_S = 0.5
TELL_S = 30.0
"""Interval of lines about the same wait."""


class DeploymentClaim(msgspec.Struct, frozen=True):
    """A deployer's entry in the control store.

    Args:
        owner: unique to this deployment.
        author: user, host and process.
        work: description, such as "deploys configuration 3fa9c12ab901".
        stage: its progress.
        renewals: increases while the deployer is alive.
    """

    owner: str
    author: str
    work: str
    stage: str = "begins"
    renewals: int = 0
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.author} {self.work} ({self.stage})"


class LeaseWatch:
    """Decides when a waiting deployer may claim the lease, and what it reports. Pure; time is an argument [s]."""

    def __init__(self) -> None:
        self._seen: DeploymentClaim | None = None
        self._since: float | None = None
        self._said = ""
        self._said_at = 0.0

    def free(self, claim: DeploymentClaim | None, now: float) -> bool:
        """Whether the lease may be claimed, judged by the claim just read; None = there is none."""
        if claim is None or claim.ended:
            return True
        if claim != self._seen or self._since is None:
            self._seen, self._since = claim, now
        return now - self._since >= LEASE_S

    def silent(self) -> None:
        """Note that the control store did not respond: a holder could not renew its claim either."""
        self._since = None

    def line(self, now: float) -> str | None:
        """Status line that is due: at the start of the wait, at each stage, and every `TELL_S`; None = none."""
        if self._seen is None or (str(self._seen) == self._said and now - self._said_at < TELL_S):
            return None
        self._said, self._said_at = str(self._seen), now
        return f"waiting for another deployment to end: {self._seen}"

    def lapsed(self) -> str | None:
        """Line about a holder that stopped without ending its claim; None = there was none."""
        if self._seen is None or self._since is None:
            return None
        return f"taking over: {self._seen} has not been heard of for {LEASE_S:.0f} s"


class LeaseStore(Protocol):
    """The methods of `GcsStore` that are used."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...

    def put_if_absent(self, key: str, value: bytes) -> bytes: ...

    def delete(self, key: str) -> bool: ...

    def keys(self, prefix: str = "") -> list[str]: ...


class DeploymentLease:
    """Held within a `with` block, which first waits for the lease and renews its claim on a thread of its own.

    Args:
        work: see `DeploymentClaim`.
        say: receives a line about each wait.
        clock, pause: for tests.
    Raises: SilentError if the control store does not respond to the first request.
    """

    def __init__(
        self,
        store: LeaseStore,
        work: str,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._store, self._say, self._clock, self._pause = store, say, clock, pause
        self._claim = DeploymentClaim(secrets.token_hex(8), author_here(), work)
        self._key = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._renewer = threading.Thread(target=self._renew_until_over, name="deployment-lease", daemon=True)

    @property
    def author(self) -> str:
        """Author of the claim."""
        return self._claim.author

    def __enter__(self) -> Self:
        watch, answered = LeaseWatch(), False
        while True:
            now = self._clock()
            try:
                key, claim = self._newest()
                answered = True
                if watch.free(claim, now) and self._claimed(key):
                    break
            except SilentError:
                if not answered:
                    raise
                watch.silent()
            if (line := watch.line(now)) is not None:
                self._say(line)
            self._pause(POLL_S)
        if claim is not None and not claim.ended and (line := watch.lapsed()) is not None:
            self._say(line)
        self._renewer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        try:
            self._write(ended=True)
        except SilentError:  # the claim expires
            pass

    def advance(self, stage: str) -> bool:
        """Record the next stage. Returns: whether the lease is still held; if not, nothing may be deployed.

        Raises: SilentError.
        """
        return self._write(stage=stage)

    def renew(self) -> bool:
        """Renew the lease. Returns, Raises: as `advance`."""
        return self._write(renewals=self._claim.renewals + 1)

    def _write(self, **changed: object) -> bool:
        with self._lock:
            newest, claim = self._newest()
            if newest != self._key or claim is None or claim.owner != self._claim.owner:
                return False
            self._claim = msgspec.structs.replace(self._claim, **changed)
            self._store.put(self._key, msgspec.json.encode(self._claim))
            return True

    def _newest(self) -> tuple[str, DeploymentClaim | None]:
        """The key with the highest number, empty if there is none, and its claim; None if it cannot be read."""
        key = max(self._store.keys(PREFIX), default="")
        kept = self._store.get(key) if key else None
        try:
            return key, msgspec.convert(parse_json(kept), DeploymentClaim) if kept is not None else None
        except (*UNREADABLE, ValueError):  # of another version of this package; it may have ended long ago
            return key, None

    def _claimed(self, before: str) -> bool:
        """Claim the number after the highest existing key's; lower ones may have been used and removed.

        Effects: removes earlier claims.
        """
        number = int(before.removeprefix(PREFIX)) + 1 if before else 1
        key, mine = f"{PREFIX}{number:09d}", msgspec.json.encode(self._claim)
        if self._store.put_if_absent(key, mine) != mine:
            return False
        keys = self._store.keys(PREFIX)
        if max(keys, default="") != key:
            self._store.delete(key)
            return False
        for old in keys:
            if old != key:
                self._store.delete(old)
        self._key = key
        return True

    def _renew_until_over(self) -> None:
        while not self._over.wait(RENEW_S):
            try:
                if not self.renew():
                    return
            except SilentError:  # while the head is lost
                continue


def author_here() -> str:
    """User, host and process of this deployer."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"
