"""A process that runs one chat template: started by `template_pool`, and lost when the template takes too much.

    parent -> child    length, marshalled values: first the source, then one dictionary of variables after the other
    child -> parent    length, kind, text: the rendered text, or why there is none

The child ends itself: the kernel ends it when an answer has taken its processor time, also in the midst of one long
operation, and refuses it memory beyond its share. It ends when its parent does, too. Whatever the parent reads is text,
so that a template that got out of the sandbox has got nowhere.
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
"""Processor time that an answer may take, and more for what it is made from. Long conversations take 0.2 s per MB."""
MEMORY_BYTES, MEMORY_PER_BYTE = 1 << 29, 64
"""Of address space, likewise: Python and jinja2 have 100 MB of it."""
MOST_CHARS, MOST_CHARS_PER_BYTE = 1 << 20, 8
"""Of the text, likewise: instructions for tools may be long, and escapes take six characters."""
_LONGEST_REASON = 1000


def most_chars(size: int) -> int:
    """How long the text from so many bytes may be."""
    return MOST_CHARS + MOST_CHARS_PER_BYTE * size


def serve(connection: socket.socket, cpu_s: float) -> None:
    """Answer until the other side is gone. `cpu_s`: processor time for an answer, beside what its size gives."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # what a parent ignores or blocks, its children would, too
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
    """Give the next answer its share of processor and memory."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES + MEMORY_PER_BYTE * size
    resource.setrlimit(resource.RLIMIT_AS, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, cpu_s + CPU_S_PER_BYTE * size)  # SIGPROF has no handler: it ends the process


def _refusal(error: BaseException) -> bytes:
    reason = "it needs too much memory" if isinstance(error, MemoryError) else str(error)
    return REFUSED + reason[:_LONGEST_REASON].encode("utf-8", "surrogatepass")


def _send(connection: socket.socket, answer: bytes) -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    connection.sendall(LENGTH.pack(len(answer)) + answer)


def _receive(connection: socket.socket) -> bytes | None:
    """One frame, or None when there will be none."""
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
    """How to start one; its connection is its standard input. Its path is ours, whatever ours came from."""
    run = f"from serving.gateway.api.template_process import main; main({cpu_s!r})"
    program = f"import sys; sys.path[:] = {sys.path!r}; {run}"
    return [sys.executable, "-I", "-S", "-c", program]


def main(cpu_s: float) -> None:
    """Serve what standard input is connected to."""
    with socket.socket(fileno=0) as connection:
        serve(connection, cpu_s)
