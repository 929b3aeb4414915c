"""TCP listeners of processes, as reported by the kernel."""

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterable
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LISTENING = "0A"


def addresses(pids: Iterable[int]) -> list[tuple[int, Address]]:
    """Every listener of these processes, with its bound address; mapped IPv4 addresses as IPv4."""
    owners = {inode: pid for pid in pids for inode in _sockets(pid)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in owners:
                found.append((owners[fields[9]], _address(fields[1].partition(":")[0])))
    return found


def _sockets(pid: int) -> set[str]:
    """Inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):  # it has ended since
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _address(written: str) -> Address:
    """An address from the kernel's 32-bit words in the machine's byte order."""
    words = [written[at : at + 8] for at in range(0, len(written), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    found = ipaddress.ip_address(packed)
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found
