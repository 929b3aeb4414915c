"""Tool pauses: the time that tools take, learned per namespace, and the hints sent for sessions that wait for them.

    answer with tool calls ──► on_answer ──SETTLE_S──► Retain until the p95   ┐ of the called tools' pauses
                                   │                   Demote, if p50 is long ┘
                                   └──────0.8 p50────► Prefetch, if demoted
    next request ────────────► on_request: learns the pause, and cancels unsent hints

Pure: a driver reports answers and requests, calls `on_due` at `next_due`, and sends the actions.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from serving.gateway.core.kv_hints import EARLY, ClientHints, HintLimits, SessionName
from serving.gateway.core.pause_histogram import LONGEST_S, PauseHistogram
from serving.values.kv_hints import ClaimKind, ClaimSpan, HintAction, HintVerb, SequenceClaim

MOST_TOOLS = 50
"""Tools of a namespace with a histogram of their own; further ones share that of `OTHER`."""
OTHER = "other"
MOST_NAMESPACES = 256
"""The namespace that was silent for longest is forgotten first."""
MOST_OPEN = 2048
"""Pauses of a namespace that are observed at once; the oldest is dropped, with its actions."""
MOST_AT_ONCE = 64
"""Pauses whose actions one call of `on_due` returns."""
FEWEST = 4.0
"""Observations from which a histogram is used. Tools with fewer use that of all tools of the namespace."""
SETTLE_S = 1.0
"""From an answer to its first actions: its last blocks are stored by then, and quick tools cause no message at all."""
LEAST_RETAIN_S = 10.0

_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class PausePlan:
    """Treatment of a session in a pause. `prefetch_s`: from the start of the pause; None = it stays in memory."""

    retain_s: float
    prefetch_s: float | None = None


@dataclass(frozen=True, slots=True)
class ObservedPause:
    """A pause that has ended. `tools`: those called, under at most `MOST_TOOLS` names and `OTHER`."""

    tools: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class _Pause:
    since: float
    tools: tuple[str, ...]
    own: ClientHints
    plan: PausePlan | None = None
    due: float = inf
    settled: bool = False


@dataclass(slots=True)
class _Tenant:
    every: PauseHistogram = field(default_factory=PauseHistogram)
    tools: dict[str, PauseHistogram] = field(default_factory=dict)
    open: OrderedDict[SessionName, _Pause] = field(default_factory=OrderedDict)


def pause_plan(p50_s: float, p95_s: float, limits: HintLimits) -> PausePlan:
    """Treatment of a session whose tools have these pauses.

    Without an SSD tier, nothing is demoted.
    """
    retain_s = min(max(p95_s, LEAST_RETAIN_S), limits.max_ttl_s)
    return PausePlan(retain_s, EARLY * p50_s if limits.tiered and p50_s > limits.demote_after_s else None)


def pause_claim(named: SessionName, limits: HintLimits) -> SequenceClaim:
    """Claim of a request that makes none itself, so that actions find its session's blocks; `on_due` prolongs it."""
    span = ClaimSpan(ClaimKind.RETAIN, min(LEAST_RETAIN_S, limits.max_ttl_s))
    return SequenceClaim(named.session, named.branch, (span,))


class PauseTimes:
    """Pauses of all sessions at one gateway.

    Args:
        acts: False = pauses are only observed.
    """

    def __init__(self, limits: HintLimits, *, acts: bool = True) -> None:
        self.limits = limits
        self.acts = acts
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._due: list[tuple[float, int, str, SessionName]] = []
        self._serial = 0

    def on_request(self, namespace: str, named: SessionName, now: float, *, offers_tools: bool) -> ObservedPause | None:
        """A request of a session: its pause, if it was in one. Effects: what that pause still had to send is cancelled.

        Args:
            offers_tools: others are side requests of a client, such as for a title: the conversation still waits.
        """
        tenant = self._tenants.get(namespace)
        if tenant is None or not offers_tools or (pause := tenant.open.pop(named, None)) is None:
            return None
        seconds = now - pause.since
        if not 0 <= seconds <= LONGEST_S:  # the clock has jumped, or a person was away
            return None
        tenant.every.observe(seconds)
        for tool in pause.tools:  # one of several is blamed for a part
            tenant.tools[tool].observe(seconds, 1 / len(pause.tools))
        return ObservedPause(pause.tools, seconds)

    def on_answer(
        self,
        namespace: str,
        named: SessionName,
        tools: Collection[str],
        now: float,
        own: ClientHints = ClientHints.NONE,
    ) -> None:
        """An answer of a session is complete. Effects: a pause starts if it ended with tool calls.

        Args:
            tools: names of the called tools; empty = it ended otherwise.
            own: what the answered request said about its session takes precedence: a claim is not changed, only
                Prefetch is inferred; beside `kv_hints`, nothing is.
        """
        if not tools:
            return
        tenant = self._tenant(namespace)
        labels = tuple(dict.fromkeys([self._label(tenant, tool) for tool in tools]))
        tenant.open.pop(named, None)
        pause = tenant.open[named] = _Pause(now, labels, own)
        if len(tenant.open) > MOST_OPEN:
            tenant.open.popitem(last=False)
        if not self.acts or own is ClientHints.ACTIONS or (plan := self.plan_of(namespace, labels)) is None:
            return
        pause.plan, pause.settled = plan, own is ClientHints.CLAIM
        first = plan.prefetch_s if pause.settled else SETTLE_S
        if first is not None:
            self._set(namespace, named, pause, now + first)

    def on_hint(self, namespace: str, session: str) -> None:
        """Cancel the actions of a session's pauses, because its client sends actions of its own. O(open pauses)."""
        tenant = self._tenants.get(namespace)
        for named, pause in tenant.open.items() if tenant is not None else ():
            if named.session == session:
                pause.due = inf

    def plan_of(self, namespace: str, tools: Sequence[str]) -> PausePlan | None:
        """Treatment of a pause for these tools; None while too little is known."""
        tenant = self._tenants.get(namespace)
        return None if tenant is None else _plan(tenant, tools, self.limits.of(namespace))

    # ---- time --------------------------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """When `on_due` is to be called; infinite if there is nothing to send."""
        due = self._due
        while due and self._pause_at(due[0]) is None:
            heappop(due)
        return due[0][0] if due else inf

    def on_due(self, now: float) -> list[tuple[str, tuple[HintAction, ...]]]:
        """Actions whose time has come, by namespace and session, of at most `MOST_AT_ONCE` pauses."""
        found: list[tuple[str, tuple[HintAction, ...]]] = []
        while len(found) < MOST_AT_ONCE and self.next_due() <= now:
            item = heappop(self._due)
            _, _, namespace, named = item
            pause = self._tenants[namespace].open[named]
            assert pause.plan is not None, "only planned pauses have a time"
            found.append((namespace, self._actions(named, pause, pause.plan)))
            prefetch_s = pause.plan.prefetch_s
            if pause.settled or prefetch_s is None:
                pause.due = inf
            else:
                pause.settled = True
                self._set(namespace, named, pause, pause.since + prefetch_s)
        return found

    @property
    def open(self) -> int:
        """Number of open pauses."""
        return sum([len(tenant.open) for tenant in self._tenants.values()])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _actions(self, named: SessionName, pause: _Pause, plan: PausePlan) -> tuple[HintAction, ...]:
        if pause.settled:
            return (HintAction(HintVerb.PREFETCH, named.session, named.branch),)
        retain = HintAction(HintVerb.RETAIN, named.session, named.branch, ttl_s=plan.retain_s)
        if plan.prefetch_s is None:
            return (retain,)
        return retain, HintAction(HintVerb.DEMOTE, named.session, named.branch)

    def _tenant(self, namespace: str) -> _Tenant:
        tenant = self._tenants.get(namespace)
        if tenant is None:
            tenant = self._tenants[namespace] = _Tenant()
            if len(self._tenants) > MOST_NAMESPACES:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(namespace)
        return tenant

    def _label(self, tenant: _Tenant, tool: str) -> str:
        name = tool[:_LONGEST_NAME]
        if name not in tenant.tools and len(tenant.tools) - (OTHER in tenant.tools) >= MOST_TOOLS:
            name = OTHER
        tenant.tools.setdefault(name, PauseHistogram())
        return name

    def _set(self, namespace: str, named: SessionName, pause: _Pause, due: float) -> None:
        self._serial += 1
        pause.due = due
        heappush(self._due, (due, self._serial, namespace, named))
        if len(self._due) > 2 * self.open + 64:  # most pauses end before their second time
            self._due = [one for one in self._due if self._pause_at(one) is not None]
            heapify(self._due)

    def _pause_at(self, item: tuple[float, int, str, SessionName]) -> _Pause | None:
        """The pause of an item in the heap, unless it has ended or has another time by now."""
        due, _, namespace, named = item
        tenant = self._tenants.get(namespace)
        pause = None if tenant is None else tenant.open.get(named)
        return pause if pause is not None and pause.due == due else None


def _plan(tenant: _Tenant, tools: Sequence[str], limits: HintLimits) -> PausePlan | None:
    """The slowest of the tools decides."""
    p50 = p95 = 0.0
    for tool in tools:
        known = tenant.tools.get(tool)
        if known is None or known.total < FEWEST:
            known = tenant.every
        if known.total < FEWEST:
            return None
        p50, p95 = max(p50, known.quantile(0.5)), max(p95, known.quantile(0.95))
    return pause_plan(p50, p95, limits)
