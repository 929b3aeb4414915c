#!/usr/bin/env python3
"""Several "hosts" in one Linux machine, made of namespaces: each has its own network, processes, /tmp and /dev/shm.

A host's processes reach the other hosts only through the network. The files of the machine are the same everywhere, as
an image would give them: this repository, its environment, models. Addresses are 10.77.0.1, 10.77.0.2 ... in the order
of the names; each host resolves the others by name.

  hosts.py up a b                     make hosts a and b (again: adds those that are missing, empty ones)
  hosts.py run a -- ray status        run a command in host a, from this folder, with this environment
  hosts.py cut a | join a             disconnect it from the network, reconnect it
  hosts.py freeze a | thaw a          stop all its processes, continue them
  hosts.py kill a                     power off: its processes, /tmp and /dev/shm are lost
  hosts.py down                       kill all of them

Needs root and `ip` (Debian: iproute2). Uses only Python's standard library.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NETWORK = "10.77.0"
SWITCH = ".switch"
SHARED_MEMORY, TEMPORARY = "6g", "4g"
"""Upper limits of a host's /dev/shm and /tmp; memory is taken as they fill."""
READY_S = 20.0
REPOSITORY = Path(__file__).resolve().parents[2]


class HostsError(Exception):
    """A user-correctable error; one line."""


class Hosts:
    """The hosts of one network.

    Args:
        name: several networks can live side by side; they cannot reach each other, so that addresses may be the same.
    """

    def __init__(self, name: str) -> None:
        self._folder = Path("/run/cloudmatrix-hosts") / name

    def up(self, names: list[str]) -> None:
        """Make hosts. Raises: HostsError if this machine does not allow it. Effects: processes that stay."""
        _require()
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._pid(SWITCH) is None:
            self._start(SWITCH, ["--net"])
            self._ip(SWITCH, "link", "add", "bridge", "type", "bridge")
            self._ip(SWITCH, "address", "add", f"{NETWORK}.254/24", "dev", "bridge")
            self._ip(SWITCH, "link", "set", "bridge", "up")
        known = self._names()
        for name in names:
            if name not in known:
                known.append(name)
        (self._folder / "names").write_text("\n".join(known))
        (self._folder / "etc-hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{self.address(name)} {name}\n" for name in known)
        )
        for name in names:
            if self._pid(name) is None:
                self._make(name)

    def _make(self, name: str) -> None:
        self._start(name, ["--net", "--mount", "--pid", "--uts", "--ipc"])
        port = f"to-{name}"
        host = str(self._need(name))
        self._ip(SWITCH, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        self._ip(SWITCH, "link", "set", port, "master", "bridge", "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("address", "add", f"{self.address(name)}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", f"{NETWORK}.254"),
        ):
            self._ip(name, *command)

    def address(self, name: str) -> str:
        """The host's address. Raises: HostsError if there is no such host."""
        if name not in self._names():
            raise HostsError(f"there is no host {name}; there are: {', '.join(self._names()) or 'none'}")
        return f"{NETWORK}.{self._names().index(name) + 1}"

    def command(self, name: str, command: list[str]) -> list[str]:
        """The command line that runs a command in a host. Raises: HostsError if the host is not up."""
        entered = ["nsenter", f"--target={self._need(name)}", "--mount", "--pid", "--uts", "--ipc", "--net"]
        # nsenter stays outside and passes no signal on: a signal that ends it sends its command a SIGTERM. `--wd` would
        # be this folder outside: a host has a separate /tmp.
        return [*entered, f"--wdns={os.getcwd()}", "--", "setpriv", "--pdeathsig=TERM", "--", *command]

    def cut(self, name: str, *, joined: bool = False) -> None:
        """Disconnect a host from the network, or reconnect it."""
        self._need(name)
        self._ip(SWITCH, "link", "set", f"to-{name}", "up" if joined else "down")

    def freeze(self, name: str, *, thaw: bool = False) -> None:
        """Stop all processes of a host, or continue them."""
        # A command's nsenter, outside, stops together with its command, but does not continue together with it.
        for pid in self._processes(name) + (self._processes(name, outside=True) if thaw else []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if thaw else signal.SIGSTOP)

    def kill(self, name: str) -> None:
        """Kill a host with all its processes, immediately. No effect on one that is not up."""
        pid = self._pid(name)
        if pid is not None:
            for parent in self._processes(name, outside=True):  # one that is stopped would not collect its command
                with contextlib.suppress(ProcessLookupError):
                    os.kill(parent, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)  # the first process of a PID namespace: the kernel ends the others
            _await(lambda: self._pid(name) is None, f"host {name} does not end")
        (self._folder / f"{name}.pid").unlink(missing_ok=True)
        switch = self._pid(SWITCH)
        if name != SWITCH and switch is not None:
            self._ip(SWITCH, "link", "delete", f"to-{name}", check=False)  # removed with the host, a moment later

    def down(self) -> None:
        """End every host and the network. Safe to call twice."""
        for name in [*self._names(), SWITCH]:
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _names(self) -> list[str]:
        path = self._folder / "names"
        return path.read_text().split() if path.exists() else []

    def _start(self, name: str, namespaces: list[str]) -> None:
        ready = self._folder / f"{name}.ready"
        ready.unlink(missing_ok=True)
        command = ["unshare", *namespaces, *(["--fork"] if "--pid" in namespaces else []), sys.executable, "-I", "-S"]
        hostname = name if name != SWITCH else ""
        kept = [str(REPOSITORY), sys.prefix, sys.base_prefix, os.getcwd()]
        with (self._folder / f"{name}.log").open("w") as log:
            outer = subprocess.Popen(
                [*command, __file__, "be-host", str(ready), hostname, *kept],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        log_text = self._folder / f"{name}.log"
        _await(lambda: ready.exists() or outer.poll() is not None, f"host {name} does not start")
        if not ready.exists():
            raise HostsError(f"this machine does not allow namespaces: {log_text.read_text().strip()[-300:]}")
        pid = outer.pid
        if "--pid" in namespaces:
            pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
        (self._folder / f"{name}.pid").write_text(f"{pid} {_born(pid)}")

    def _ip(self, name: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            ["nsenter", f"--target={self._need(name)}", "--net", "--", "ip", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise HostsError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def _pid(self, name: str) -> int | None:
        """The first process of a host that is up."""
        try:
            pid, born = map(int, (self._folder / f"{name}.pid").read_text().split())
        except (OSError, ValueError):
            return None
        return pid if _born(pid) == born else None

    def _need(self, name: str) -> int:
        pid = self._pid(name)
        if pid is None:
            raise HostsError(f"host {name} is not up; up are: {', '.join(n for n in self._names() if self._pid(n))}")
        return pid

    def _processes(self, name: str, *, outside: bool = False) -> list[int]:
        """Processes of a host; with `outside`, those outside its namespaces whose children are inside."""
        own = os.readlink(f"/proc/{self._need(name)}/ns/pid")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended since
                inside = os.readlink(folder / "ns" / "pid") == own
                begins = os.readlink(folder / "ns" / "pid_for_children") == own
                if (begins and not inside) if outside else inside:
                    found.append(int(folder.name))
        return found


def be_host(ready: Path, hostname: str, kept: list[str]) -> None:
    """The first process of a host: mounts its file systems, then reaps ended children until it is killed."""
    if hostname:
        _own_file_systems(hostname, kept, ready.parent / "etc-hosts")
    ready.touch()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        signal.sigwait([signal.SIGCHLD])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _own_file_systems(hostname: str, kept: list[str], names: Path) -> None:
    def run(*command: str) -> None:
        subprocess.run(command, check=True)

    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "--bind", str(names), "/etc/hosts")
    if Path("/etc/resolv.conf").exists():  # without a DNS server, requests for other names fail immediately
        run("mount", "--bind", os.devnull, "/etc/resolv.conf")
    run("mount", "-t", "tmpfs", "-o", f"size={SHARED_MEMORY}", "tmpfs", "/dev/shm")
    # Files that this repository needs may be under /tmp itself: they are kept open while the new /tmp covers it.
    within = [path for path in dict.fromkeys(kept) if Path(path).is_relative_to("/tmp") and path != "/tmp"]
    held = [os.open(path, os.O_PATH) for path in within]
    run("mount", "-t", "tmpfs", "-o", f"size={TEMPORARY},mode=1777", "tmpfs", "/tmp")
    for path, fd in zip(within, held, strict=True):
        Path(path).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--no-canonicalize", "--bind", f"/proc/self/fd/{fd}", path], check=True, pass_fds=[fd])
        os.close(fd)
    run("hostname", hostname)


def _born(pid: int) -> int:
    """Start time of a process [clock ticks since boot], which detects a reused process id; 0 if none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def _await(done: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + READY_S
    while not done():
        if time.monotonic() > end:
            raise HostsError(problem)
        time.sleep(0.01)


def _require() -> None:
    if os.geteuid() != 0:
        raise HostsError("making hosts needs root: run it with sudo")
    for tool in ("ip", "unshare", "nsenter", "setpriv", "mount"):
        if shutil.which(tool) is None:
            raise HostsError(f"{tool} is not installed (Debian: apt-get install iproute2 util-linux mount)")


def main() -> int:
    """Command line. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--network", default="default", metavar="NAME", help="which network of hosts (default: default)"
    )
    parser.add_argument("action", choices=("up", "run", "cut", "join", "freeze", "thaw", "kill", "down"))
    parser.add_argument("hosts", nargs="*", metavar="HOST")
    arguments, command = parser.parse_known_args(_before_dashes(sys.argv[1:]))[0], _after_dashes(sys.argv[1:])
    hosts = Hosts(arguments.network)
    try:
        if arguments.action == "run":
            if len(arguments.hosts) != 1 or not command:
                raise HostsError("say which host, and after -- the command: hosts.py run a -- ray status")
            line = hosts.command(arguments.hosts[0], command)
            os.execvp(line[0], line)
        if arguments.action == "down":
            hosts.down()
        elif arguments.action == "up":
            hosts.up(arguments.hosts)
            for name in arguments.hosts:
                print(f"{name}  {hosts.address(name)}")
        for name in arguments.hosts:
            _ACTIONS.get(arguments.action, lambda *_: None)(hosts, name)
    except HostsError as error:
        print(f"hosts.py: {error}", file=sys.stderr)
        return 2
    return 0


_ACTIONS = {
    "cut": lambda hosts, name: hosts.cut(name),
    "join": lambda hosts, name: hosts.cut(name, joined=True),
    "freeze": lambda hosts, name: hosts.freeze(name),
    "thaw": lambda hosts, name: hosts.freeze(name, thaw=True),
    "kill": lambda hosts, name: hosts.kill(name),
}


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _after_dashes(words: list[str]) -> list[str]:
    return words[words.index("--") + 1 :] if "--" in words else []


if __name__ == "__main__":
    if sys.argv[1:2] == ["be-host"]:
        be_host(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    else:
        sys.exit(main())
