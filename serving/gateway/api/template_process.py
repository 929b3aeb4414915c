"""A process that runs one chat template: started by `template_pool`, killed when the template exceeds its limits.

    parent -> child    length, marshalled values: first the source, then one dictionary of variables after the other
    child -> parent    length, kind, text: the rendered text, or the reason for a refusal

The child limits itself: the kernel kills it when a response has used up its CPU time, even during one long operation,
and refuses it memory beyond its limit. It also exits when its parent does. The parent reads only text, so a template
that escapes the sandbox gains nothing.
"""

import marshal
import resource
import signal
import socket
import struct
import sys

from serving.gateway.api.template_text import TextTemplate

LENGTH = struct.Struct("<I")
TEXT, REFUSED = b"T", b"R"
CPU_S, CPU_S_PER_BYTE = 2.0, 2e-6
"""CPU time per response, and more per input byte. Long conversations take 0.2 s per MB."""
MEMORY_BYTES, MEMORY_PER_BYTE = 1 << 29, 64
"""Address space per response, and more per input byte: Python and jinja2 use 100 MB of it."""
MOST_CHARS, MOST_CHARS_PER_BYTE = 1 << 20, 8
"""Characters of a response, and more per input byte: instructions for tools may be long, escapes take six."""
_LONGEST_REASON = 1000


def most_chars(size: int) -> int:
    """Most characters of the text for an input of `size` bytes."""
    return MOST_CHARS + MOST_CHARS_PER_BYTE * size


def serve(connection: socket.socket, cpu_s: float) -> None:
    """Respond until the peer closes. `cpu_s`: CPU time per response, in addition to the time allowed for its size."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # children inherit what a parent ignores or blocks
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    source = _receive(connection)
    if source is None:
        return
    template = _compiled(connection, source, cpu_s)
    while template is not None and (frame := _receive(connection)) is not None:
        _allow(len(frame), cpu_s)
        try:
            text = template.render(marshal.loads(frame), most_chars(len(frame)))
            answer = TEXT + text.encode("utf-8", "surrogatepass")
        except BaseException as error:
            answer = _refusal(error)
        _send(connection, answer)


def _compiled(connection: socket.socket, source: bytes, cpu_s: float) -> TextTemplate | None:
    _allow(len(source), cpu_s)
    try:
        template = TextTemplate(marshal.loads(source))
    except BaseException as error:
        _send(connection, _refusal(error))
        return None
    _send(connection, TEXT)
    return template


def _allow(size: int, cpu_s: float) -> None:
    """Set the limits of CPU time and memory for the next response."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES + MEMORY_PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s + CPU_S_PER_BYTE * size)  # SIGPROF without a handler kills the process


def _refusal(error: BaseException) -> bytes:
    reason = "it needs too much memory" if isinstance(error, MemoryError) else str(error)
    return REFUSED + reason[:_LONGEST_REASON].encode("utf-8", "surrogatepass")


def _send(connection: socket.socket, answer: bytes) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    connection.sendall(LENGTH.pack(len(answer)) + answer)


def _receive(connection: socket.socket) -> bytes | None:
    """One frame, or None at the end of the stream."""
    head = _exactly(connection, LENGTH.size)
    return None if head is None else _exactly(connection, LENGTH.unpack(head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def command(cpu_s: float) -> list[str]:
    """Command that starts a process; its connection is its standard input. `sys.path` is copied from this process."""
    run = f"from serving.gateway.api.template_process import main; main({cpu_s!r})"
    program = f"import sys; sys.path[:] = {sys.path!r}; {run}"
    return [sys.executable, "-I", "-S", "-c", program]


def main(cpu_s: float) -> None:
    """Serve the connection on standard input."""
    with socket.socket(fileno=0) as connection:
        serve(connection, cpu_s)
