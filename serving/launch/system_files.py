"""Files of a system outside its processes' own folders, on one host; must run on that host."""

from pathlib import Path

from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY
from serving.cluster.session import deployed_session
from serving.faults.injected import faults_path
from serving.launch.reaper import remove


def system_file_prefixes(session: str) -> tuple[Path, ...]:
    """Name prefixes of a system's files outside its folder; files of faults remain only if their tester was killed."""
    return (SHARED_MEMORY / f"{SEGMENT_PREFIX}{session}-", faults_path(SHARED_MEMORY, session))


def remove_system_files(session: str) -> int:
    """Delete the files of a deployed system on this host. Returns: number of removed files and folders."""
    folder, prefixes = deployed_session(session).folder, system_file_prefixes(session)
    found = sum(len(list(prefix.parent.glob(f"{prefix.name}*"))) for prefix in prefixes) + folder.exists()
    remove(folder, prefixes)
    return found
