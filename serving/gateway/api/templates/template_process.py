"""A process that runs one chat template: started by `template_pool`, killed when the template exceeds its limits.

    parent -> child    length, marshalled values: first the source, then one dictionary of variables after the other
    child -> parent    length, kind, text: the rendered text, or the reason for a refusal

The child limits itself: the kernel kills it when a response has used up its CPU time, even during one long operation,
and refuses it memory beyond its limit. It also exits when its parent does. The parent reads only text, so a template
that escapes the sandbox gains nothing.
"""

import datetime
import json
import marshal
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# Hugging Face chat templates in jinja2: foreign code, and the functions that it may use.
#
# The environment has the functions that templates of published models use: `raise_exception`, `strftime_now`, `tojson`
# without HTML escapes, loop controls, trimmed blocks and `{% generation %}`. The sandbox denies a template access to
# Python, but does not limit its CPU time and memory: templates are compiled and run in a process that may be killed,
# `template_process`. Imports nothing of the server, so that such a process starts quickly.

MARK = "\udfff"
"""A lone surrogate: JSON parsers refuse it, so no message contains it; a template's filters preserve it."""
SOLE_MARK = "\udffe"
"""Follows a control token of one character, which cannot be marked inside."""

_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


class TooLongError(Exception):
    """A template generates more text than any model can process."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; in serving it is replaced by its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain class attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    """JSON's escape of a character, except for marks, which are kept."""
    return match[0] if match[0] in (MARK, SOLE_MARK) else json.dumps(match[0])[1:-1]


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def syntax_error(source: str) -> str | None:
    """Syntax error of a template, found by parsing alone: no code of it is run, no constants are folded."""
    environment = _environment()
    try:
        tree = environment.parse(source)
        for kind, known in ((jinja2.nodes.Filter, environment.filters), (jinja2.nodes.Test, environment.tests)):
            for node in tree.find_all(kind):
                if node.name not in known:
                    return f"there is no {kind.__name__.lower()} named {node.name!r}"
    except Exception as error:  # foreign code: also nested too deep, or a number of too many digits
        return str(error)
    return None


class TextTemplate:
    """One compiled template."""

    def __init__(self, source: str) -> None:
        """Compile, which folds constants. Raises: any exception that jinja2 raises for foreign code."""
        self._template = _environment().from_string(source)

    def render(self, variables: Mapping[str, Any], most_chars: int) -> str:
        """The rendered text.

        Raises: TooLongError; any exception of the template.
        """
        pieces, length = [], 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > most_chars:
                raise TooLongError(f"it turns them into more than {most_chars} characters of them")
            pieces.append(piece)
        return "".join(pieces)


# A process that runs one chat template: started by `template_pool`, killed when the template exceeds its limits.

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
    run = f"from serving.gateway.api.templates.template_process import main; main({cpu_s!r})"
    program = f"import sys; sys.path[:] = {sys.path!r}; {run}"
    return [sys.executable, "-I", "-S", "-c", program]


def main(cpu_s: float) -> None:
    """Serve the connection on standard input."""
    with socket.socket(fileno=0) as connection:
        serve(connection, cpu_s)
