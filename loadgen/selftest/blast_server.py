"""A server with responses as fast, or as evenly paced, as configured: what a generator can be measured against.

    blast   tokens are written as fast as the connection takes them, one write each (or --burst in one)
    paced   every stream gets its first token after `--ttft-s` and then `--tokens-per-s`
    stall   paced, and the whole server pauses for `--stall-for-s`, `--stall-at-s` after the first request

It speaks /v1/completions, /v1/chat/completions, /v1/models, /health and a little /metrics, on raw asyncio (uvloop).
With `--slots N` only N requests are worked on at once, the others wait their turn.

The first line of its output is the port. It ends with SIGTERM, or with its input under `--end-with-stdin`.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys

import uvloop

from loadgen.selftest.streams import Server, StreamPace
from loadgen.selftest.wire import ServerConnection


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadgen.selftest.blast_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--mode", choices=("blast", "paced", "stall"), default="blast")
    parser.add_argument("--tokens-per-s", type=float, default=50.0, help="of each stream (paced, stall)")
    parser.add_argument("--ttft-s", type=float, default=0.0, help="from request to first token (paced, stall)")
    parser.add_argument("--lockstep", action="store_true", help="tokens of all streams at the same moments, as a batch")
    parser.add_argument("--stall-at-s", type=float, default=1.0, help="counted from the first request")
    parser.add_argument("--stall-for-s", type=float, default=2.0)
    parser.add_argument("--slots", type=int, help="requests worked on at once (default: all)")
    parser.add_argument("--burst", type=int, default=1, help="tokens (events) per write (blast, lockstep)")
    parser.add_argument("--chunk-bytes", type=int, default=250, help="size of an event with one token")
    parser.add_argument("--model", default="blast", help="the only model's name")
    parser.add_argument("--api-key", default="", help="demanded as bearer token if given")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the input is closed")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until stopped.

    Effects: prints the port.
    """
    loop = asyncio.get_running_loop()
    paced = options.mode != "blast"
    pace = StreamPace(options.tokens_per_s, options.ttft_s, options.lockstep) if paced else None
    stall = (options.stall_at_s, options.stall_for_s) if options.mode == "stall" else None
    server = Server(
        loop,
        pace=pace,
        stall=stall,
        slots=options.slots,
        burst=options.burst,
        model=options.model,
        chunk_bytes=options.chunk_bytes,
        api_key=options.api_key,
    )
    sock = socket.create_server((options.host, options.port), backlog=4096)
    listener = await loop.create_server(lambda: ServerConnection(server), sock=sock)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if options.end_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _end_with_stdin, ended)
    print(sock.getsockname()[1], flush=True)
    await ended.wait()
    listener.close()


def _end_with_stdin(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        ended.set()


def main() -> None:
    """Run."""
    options = parse()
    if options.core is not None:
        with contextlib.suppress(OSError, AttributeError):  # a core that is not ours, or no Linux
            os.sched_setaffinity(0, {options.core})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()
