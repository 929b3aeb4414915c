"""Files of a system outside the processes that made them, on one host; runs where they are."""

from pathlib import Path

from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY
from serving.cluster.session import deployed_session
from serving.injected_faults import faults_path
from serving.launch.reaper import remove


def system_file_prefixes(session: str) -> tuple[Path, ...]:
    """Beginnings of the names of a system's files outside its folder; faults are of a tester that was killed."""
    return (SHARED_MEMORY / f"{SEGMENT_PREFIX}{session}-", faults_path(SHARED_MEMORY, session))


def remove_system_files(session: str) -> int:
    """Delete what a system that was deployed has left on this host. Returns: files and folders that went."""
    folder, prefixes = deployed_session(session).folder, system_file_prefixes(session)
    found = sum(len(list(prefix.parent.glob(f"{prefix.name}*"))) for prefix in prefixes) + folder.exists()
    remove(folder, prefixes)
    return found
