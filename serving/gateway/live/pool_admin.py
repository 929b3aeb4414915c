"""Administrative requests to the memory servers: usage, deletion, audit. Each server has a thread of its own.

Such requests are rare and may take long, so they use a few threads separate from those that tokenize, and one
connection per request. Every request has a deadline; a server that misses it is reported as `silent`, and the responses
of the others are still used.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Protocol, TypeVar

from serving.config.simulated_cost import AccountedKv
from serving.errors import PoolError
from serving.gateway.api.admin.pool_admin import ServerAnswers
from serving.ids import BlockHash, NodeId
from serving.kvpool.core.messages import AskUsage, Audit, Data, Forget, Message, Peek, Peeked
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import NamespaceRecord, PoolView, ServerRecord

USAGE_DEADLINE_S = 2.0
USAGE_AGE_S = 1.0
"""Age up to which a response is reused, so that frequent clients do not load the servers."""

FORGET_DEADLINE_S = 15.0
FORGET_ROUNDS = 3
AUDIT_DEADLINE_S = 300.0
"""An audit hashes every byte, and first reads those on disk."""

_Reply = TypeVar("_Reply", bound=Message)

MAX_THREADS = 32
"""Servers queried concurrently."""


class NamespaceDirectory(Protocol):
    """Store of quotas and weights."""

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Raises: UnavailableError."""
        ...

    async def drop_namespace(self, name: str) -> None:
        """Raises: UnavailableError."""
        ...


class LivePoolAdmin:
    """`PoolAdmin` over the servers of a view. Used from one event loop.

    Args:
        name: of the client, for the servers' logs.
        node: of this process.
        secret: the cluster's.
        view: returns the latest view; must not block.
        directory: stores the tenants' quotas and weights.
        accounted: set when the servers hold accounted bytes of a simulated system instead of real ones.
    """

    def __init__(
        self,
        name: str,
        node: NodeId,
        secret: str | ClusterSecrets,
        view: Callable[[], PoolView],
        directory: NamespaceDirectory,
        accounted: AccountedKv | None = None,
        audited: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._audited = audited
        self._accounted = accounted
        self._name = name
        self._node = node
        self._secret = secret
        self._view = view
        self.set_namespace = directory.set_namespace
        self.drop_namespace = directory.drop_namespace
        self._threads = asyncio.Semaphore(MAX_THREADS)
        self._usage = ServerAnswers()
        self._usage_at = float("-inf")
        self._usage_lock = asyncio.Lock()
        self._audit_lock = asyncio.Lock()

    def view(self) -> PoolView:
        """The latest view of the pool."""
        return self._view()

    async def usage(self) -> ServerAnswers:
        """Holdings of each namespace on each server; at most `USAGE_AGE_S` old."""
        async with self._usage_lock:
            if time.monotonic() - self._usage_at > USAGE_AGE_S:
                answers = await self._ask_all(AskUsage(), USAGE_DEADLINE_S)
                if self._accounted is not None:
                    answers = replace(answers, by_server=self._accounted.accounted_facts(answers.by_server))
                self._usage = answers
                self._usage_at = time.monotonic()
            return self._usage

    async def forget(self, namespace: str) -> ServerAnswers:
        """Delete a namespace, repeating until no entry is left, because entries move between servers concurrently."""
        deleted: dict[str, Counter[str]] = {}
        silent: dict[str, str] = {}
        for _ in range(FORGET_ROUNDS):
            answers = await self._ask_all(Forget(namespace), FORGET_DEADLINE_S)
            for server, counts in answers.by_server.items():
                deleted.setdefault(server, Counter(bytes=0, entries=0)).update(counts)
            silent = answers.silent
            if not any(counts["entries"] for counts in answers.by_server.values()):
                break
        self._usage_at = float("-inf")
        return ServerAnswers({server: dict(counts) for server, counts in deleted.items()}, silent)

    async def audit(self, *, repair: bool) -> ServerAnswers:
        """Audit every server; one audit at a time, since each keeps every server busy."""
        async with self._audit_lock:
            answers = await self._ask_all(Audit(repair), AUDIT_DEADLINE_S)
        self._audited(_finding(answers, repair=repair))
        return answers

    async def peek(self, namespace: str, layout: str, hashes: Sequence[BlockHash], limit_s: float) -> list[bytes]:
        """Tiers of these entries on each server that responds in time, see `Peeked`."""
        question, deadline = Peek(namespace, layout, tuple(hashes)), time.monotonic() + limit_s
        records = [server.record for server in self._view().servers]
        replies = await asyncio.gather(*(self._ask_on_thread(one, question, deadline, Peeked) for one in records))
        return [reply.tiers for reply in replies if isinstance(reply, Peeked)]

    async def _ask_all(self, question: Message, limit_s: float) -> ServerAnswers:
        records = [server.record for server in self._view().servers]
        deadline = time.monotonic() + limit_s
        replies = await asyncio.gather(*(self._ask_on_thread(record, question, deadline, Data) for record in records))
        answers = ServerAnswers()
        for record, reply in zip(records, replies, strict=True):
            if isinstance(reply, Data):
                answers.by_server[record.name] = reply.value
            else:
                answers.silent[record.name] = reply
        return answers

    async def _ask_on_thread(
        self, record: ServerRecord, question: Message, deadline: float, kind: type[_Reply]
    ) -> _Reply | str:
        """The response, or the reason for none. The thread is a daemon: a long audit must not delay the exit."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[_Reply | str] = loop.create_future()

        def tell(value: _Reply | str) -> None:
            if not reply.done():  # cancelled in the meantime
                reply.set_result(value)

        def run() -> None:
            value = self._ask(record, question, deadline, kind)
            with suppress(RuntimeError):  # the loop has ended, and with it the waiting task
                loop.call_soon_threadsafe(tell, value)

        async with self._threads:
            Thread(target=run, name="pool-admin", daemon=True).start()
            return await reply

    def _ask(self, record: ServerRecord, question: Message, deadline: float, kind: type[_Reply]) -> _Reply | str:
        link = ServerLink(record, hello_of(self._name, self._node, self._secret))
        try:
            return link.ask(kind, question, deadline)
        except PoolError as error:
            return str(error)
        finally:
            link.close()


def _finding(answers: ServerAnswers, *, repair: bool) -> str:
    """An audit's finding as text."""
    problems = sum(len(answer["problems"]) for answer in answers.by_server.values())
    count = len(answers.by_server)
    text = f"{count} memory server{'s' * (count != 1)} audited"
    text += f", {problems} problems{' removed' * repair}" if problems else ", sound"
    return f"{text}; {len(answers.silent)} did not answer" if answers.silent else text
