"""KV hints of requests: parsed fields to claims and actions, and the outcomes of actions. Pure.

An action of the envelope becomes spans of the request's own claim, actions for the memory servers (at once, after the
response, or after a delay), or an outcome that says why not. A signal is a fact, from which actions are derived here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import isfinite

from serving.errors import InvalidRequestError
from serving.values.kv_hints import (
    ClaimKind,
    ClaimSpan,
    HintAction,
    HintOutcome,
    HintStatus,
    HintVerb,
    SequenceClaim,
)

MOST_ACTIONS = 64
LONGEST_SESSION = 256
"""Characters of a session's or branch's id."""
LONGEST_TTL_S = 86_400.0
"""Largest time that a request may name; `HintLimits.max_ttl_s` limits what is granted."""
DEFAULT_TTL_S = 300.0
SOON_S = 10.0
"""A session that resumes within this time is read back to memory at once."""
EARLY = 0.8
"""Share of a pause after which the session's blocks are read back to memory."""

_PREFIX = "kv."
_CLAIMS = {"retain": ClaimKind.RETAIN, "pin": ClaimKind.PIN}
_VERBS = {verb.value: verb for verb in HintVerb}
_OWN_AT_END = ("release", "demote", "branch_ended", "tool_wait")
"""Actions that, for the request's own session, take effect after its response."""
_KEYS = {
    **dict.fromkeys(("retain", "pin"), ("session_id", "branch", "ttl_s", "tokens")),
    **dict.fromkeys(("touch", "release", "demote", "prefetch", "branch_ended"), ("session_id", "branch")),
    "tool_wait": ("session_id", "branch", "expected_s", "tool"),
    "resume_expected": ("session_id", "branch", "in_s"),
}
"""Keys of each payload, by type of action."""


def kind_of(action_type: str) -> str:
    """An action's type without prefix, in lower case; `unknown` for any other text."""
    kind = action_type.lower().removeprefix(_PREFIX)
    return kind if kind in _KEYS else "unknown"


@dataclass(frozen=True, slots=True)
class HintLimits:
    """Limits of what the system grants.

    Args:
        max_ttl_s: longest time of a claim.
        pins: whether there is a budget for pins.
        demote_after_s: blocks of a longer pause wait on SSD.
        block_tokens: tokens per block; spans are rounded down to whole blocks.
        tiered: whether memory servers have an SSD tier.
        ttl_by_namespace: `max_ttl_s` of those with one of their own.
    """

    max_ttl_s: float = 3600.0
    pins: bool = False
    demote_after_s: float = 20.0
    block_tokens: int = 16
    tiered: bool = False
    ttl_by_namespace: Mapping[str, float] = field(default_factory=dict)

    def of(self, namespace: str) -> "HintLimits":
        """Limits of one namespace."""
        own = self.ttl_by_namespace.get(namespace)
        return self if own is None else replace(self, max_ttl_s=min(own, self.max_ttl_s))


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session of a namespace, and one of its branches; an empty branch is the trunk."""

    session: str
    branch: str = ""


class ClientHints(Enum):
    """Kinds of statements of a request about its own session's cache."""

    NONE = "none"
    CLAIM = "claim"
    """It claims blocks, by `cache_control` or `prompt_cache_*`."""
    ACTIONS = "actions"
    """It has `kv_hints`."""


@dataclass(frozen=True, slots=True)
class AskedAction:
    """One action as the client wrote it. `place`: its path in the request, for errors."""

    place: str
    action_id: str
    action_type: str
    action_version: str
    payload: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """An action for the memory servers, `delay_s` after its time."""

    action_id: str
    action: HintAction
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """Result of one action of the envelope, in tokens."""

    action_id: str
    action_type: str
    outcome: HintStatus
    tokens: int = 0
    of_tokens: int = 0
    reason: str = ""


@dataclass(slots=True)
class HintPlan:
    """Meaning of a request's hints.

    Args:
        spans: of the request's own claim.
        now, at_end: actions to send at once, and after the response.
        types: type of each action by its id, in the request's order.
        known: outcomes that no server has to confirm.
    """

    spans: list[ClaimSpan] = field(default_factory=list)
    now: list[PlannedAction] = field(default_factory=list)
    at_end: list[PlannedAction] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    known: dict[str, ActionOutcome] = field(default_factory=dict)

    def outcomes(self, sent: Mapping[str, HintOutcome], block_tokens: int) -> list[ActionOutcome]:
        """All outcomes in the request's order.

        Args:
            sent: by id of the action, what the memory servers answered.
        """
        found = dict(self.known)
        for name, one in sent.items():
            tokens = one.blocks * block_tokens, one.wanted * block_tokens
            earlier = found.get(name)
            if earlier is not None and earlier.outcome is HintStatus.CLIPPED and one.status is HintStatus.ACCEPTED:
                found[name] = ActionOutcome(name, self.types[name], earlier.outcome, *tokens, earlier.reason)
            else:
                found[name] = ActionOutcome(name, self.types[name], one.status, *tokens, one.reason)
        return [found[name] for name in self.types if name in found]


def plan_actions(
    asked: Sequence[AskedAction], own: SessionName | None, limits: HintLimits, prompt_tokens: int = 0
) -> HintPlan:
    """The meaning of an envelope's actions.

    Args:
        own: session of the generating request that has the envelope; None = the envelope came alone.
        prompt_tokens: of that request.
    Raises: InvalidRequestError, which names the field; nothing has been done then.
    """
    if len(asked) > MOST_ACTIONS:
        place = asked[0].place.rpartition("[")[0]
        raise _wrong(place, f"has {len(asked)} actions; at most {MOST_ACTIONS} are allowed")
    plan = HintPlan()
    for one in asked:
        if one.action_id in plan.types:
            raise _wrong(f"{one.place}.action_id", "is used twice; each action needs an id of its own")
        plan.types[one.action_id] = one.action_type
        reason = _plan(one, own, limits, prompt_tokens, plan)
        if reason:
            plan.known[one.action_id] = ActionOutcome(
                one.action_id, one.action_type, HintStatus.REJECTED, reason=reason
            )
    return plan


def _plan(asked: AskedAction, own: SessionName | None, limits: HintLimits, prompt_tokens: int, plan: HintPlan) -> str:
    """Add one action to a plan. Returns: why it is rejected; empty if it is not.

    Raises: InvalidRequestError.
    """
    kind = kind_of(asked.action_type)
    if kind == "unknown":
        return f"unknown action; known are {', '.join(_PREFIX + name for name in _KEYS)}"
    if asked.action_version.partition(".")[0] != "1":
        return "unknown version of the action; this server knows 1.0"
    if strange := next((name for name in asked.payload if name not in _KEYS[kind]), None):
        return f"unknown key in the payload: {strange[:40]!r}; known are {', '.join(_KEYS[kind])}"
    payload = _Payload(asked)
    named = payload.session(own)
    if named is None:
        return "no session: give payload.session_id, or send it with a request of the session"
    is_own = named == own
    if kind in _CLAIMS:
        return _plan_claim(payload, named, is_own, _CLAIMS[kind], limits, prompt_tokens, plan)
    where = plan.at_end if is_own and kind in _OWN_AT_END else plan.now
    where += [PlannedAction(asked.action_id, *one) for one in _means(kind, payload, named, limits)]
    if where is plan.at_end:
        plan.known[asked.action_id] = ActionOutcome(
            asked.action_id, asked.action_type, HintStatus.DEFERRED, reason="takes effect after the response"
        )
    return ""


def _plan_claim(
    payload: "_Payload",
    named: SessionName,
    is_own: bool,
    kind: ClaimKind,
    limits: HintLimits,
    prompt_tokens: int,
    plan: HintPlan,
) -> str:
    ttl_s, tokens, asked = payload.seconds("ttl_s", DEFAULT_TTL_S), payload.count("tokens"), payload.asked
    if kind is ClaimKind.PIN and not limits.pins:
        return "pins are off: [kvcache] pin_share is 0; use kv.retain"
    granted = min(ttl_s, limits.max_ttl_s)
    cut = f"ttl_s is limited to {limits.max_ttl_s:g}" if granted < ttl_s else ""
    if not is_own:
        if tokens is not None:
            return "payload.tokens is for a request's own prompt only"
        plan.now.append(
            PlannedAction(
                asked.action_id, HintAction(HintVerb(kind.value), *_at(named, payload.has("branch")), ttl_s=granted)
            )
        )
        if cut:
            plan.known[asked.action_id] = ActionOutcome(
                asked.action_id, asked.action_type, HintStatus.CLIPPED, reason=cut
            )
        return ""
    covered = whole_blocks(prompt_tokens if tokens is None else min(tokens, prompt_tokens), limits.block_tokens)
    if tokens is not None and not covered:
        return f"fewer tokens than a block of {limits.block_tokens}"
    plan.spans.append(ClaimSpan(kind, granted, 0 if tokens is None else covered))
    plan.known[asked.action_id] = ActionOutcome(
        asked.action_id,
        asked.action_type,
        HintStatus.CLIPPED if cut else HintStatus.DEFERRED,
        covered,
        prompt_tokens if tokens is None else tokens,
        cut or "applies when the blocks are stored",
    )
    return ""


def _means(kind: str, payload: "_Payload", named: SessionName, limits: HintLimits) -> list[tuple[HintAction, float]]:
    """Actions for the memory servers, each with its delay."""
    if kind in _VERBS or kind == "branch_ended":
        return [(HintAction(_VERBS.get(kind, HintVerb.RELEASE), *_at(named, payload.has("branch"))), 0.0)]
    pause_s = payload.seconds("expected_s" if kind == "tool_wait" else "in_s", least=0.0)
    payload.text("tool")
    retain_s = min(2 * pause_s, limits.max_ttl_s)
    prefetch = HintAction(HintVerb.PREFETCH, *_at(named)), EARLY * pause_s
    if kind == "resume_expected" and pause_s <= SOON_S:
        return [(prefetch[0], 0.0)]
    retain = HintAction(HintVerb.RETAIN, *_at(named), ttl_s=retain_s), 0.0
    if retain_s <= DEFAULT_TTL_S:  # the session's own time is rarely shorter, and must not be cut
        retain = HintAction(HintVerb.TOUCH, *_at(named)), 0.0
    if kind == "resume_expected":
        return [retain, prefetch]
    if pause_s <= limits.demote_after_s:
        return [retain]
    return [retain, (HintAction(HintVerb.DEMOTE, *_at(named)), 0.0), prefetch]


def _at(named: SessionName, one_branch: bool = True) -> tuple[str, str | None]:
    """Session and branch of an action; the branch is None for all of them."""
    return named.session, named.branch if one_branch or named.branch else None


class _Payload:
    """One action's payload, read with checks."""

    def __init__(self, asked: AskedAction) -> None:
        self.asked = asked
        self._values = asked.payload

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def session(self, own: SessionName | None) -> SessionName | None:
        """The session that is meant: the named one, else the request's own."""
        name, branch = self.text("session_id"), self.text("branch")
        if name is None:
            return own if own is None or branch is None else SessionName(own.session, branch)
        check_session(name, self._place("session_id"))
        return SessionName(name, branch or "")

    def text(self, key: str) -> str | None:
        """Raises: InvalidRequestError unless it is a short text, or absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > LONGEST_SESSION or not value.isprintable():
            raise _wrong(self._place(key), f"must be a text of at most {LONGEST_SESSION} printable characters")
        return value

    def seconds(self, key: str, usual: float | None = None, least: float | None = None) -> float:
        """Raises: InvalidRequestError unless it is a number within the bounds."""
        value = self._values.get(key, usual)
        bound = f"a number of seconds {'above 0' if least is None else f'from {least:g}'} to {LONGEST_TTL_S:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(self._place(key), f"must be {bound}")
        if not (isfinite(value) and (value > 0 if least is None else value >= least) and value <= LONGEST_TTL_S):
            raise _wrong(self._place(key), f"must be {bound}")
        return float(value)

    def count(self, key: str) -> int | None:
        """Raises: InvalidRequestError unless it is a number from 1, or absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise _wrong(self._place(key), "must be a number of tokens from 1")
        return value

    def _place(self, key: str) -> str:
        return f"{self.asked.place}.payload.{key}"


def check_session(name: str, param: str) -> str:
    """A session's id, unchanged.

    Raises: InvalidRequestError, which names `param`, if it is empty, too long, or has characters that cannot be shown.
    """
    if not 1 <= len(name) <= LONGEST_SESSION or not name.isprintable():
        raise _wrong(param, f"must have 1 to {LONGEST_SESSION} printable characters to name a session")
    return name


def whole_blocks(tokens: int, block_tokens: int) -> int:
    """Tokens without those of a last, incomplete block."""
    return tokens - tokens % block_tokens


def sequence_claim(named: SessionName, spans: Iterable[ClaimSpan], limits: HintLimits) -> SequenceClaim:
    """The claim of a sequence: its spans within the limits, the longest-lived first."""
    granted = [ClaimSpan(one.kind, min(one.ttl_s, limits.max_ttl_s), one.tokens) for one in spans]
    return SequenceClaim(named.session, named.branch, tuple(sorted(granted, key=lambda one: -one.ttl_s)))


def joined_steps(outcomes: Sequence[HintOutcome]) -> HintOutcome:
    """Outcome of an action that takes several steps: that of the first which was not simply accepted."""
    return next((one for one in outcomes if one.status is not HintStatus.ACCEPTED), outcomes[0])


def _wrong(param: str, words: str) -> InvalidRequestError:
    return InvalidRequestError(f"'{param}' {words}", param=param, code="invalid_value")


@dataclass(frozen=True, slots=True)
class OrderHints:
    """Effect of a request's hints on its order.

    Args:
        claim: of its sequences; None = it makes none.
        ends: by time to live as the client wrote it, how many leading tokens of the prompt are to be kept, in whole
            blocks; the longest-lived first.
        at_end: actions to send after the response.
        answer: further keys of the response.
        pauses: session whose tool pauses are learned; None = none. own: what the request itself says about it.
    """

    claim: SequenceClaim | None = None
    ends: tuple[tuple[str, int], ...] = ()
    at_end: tuple[PlannedAction, ...] = ()
    answer: Mapping[str, object] = field(default_factory=dict)
    pauses: SessionName | None = None
    own: ClientHints = ClientHints.NONE

    def written(self, cached_tokens: int) -> dict[str, int]:
        """Tokens that were added to the cache, by time to live: those to be kept that were not cached before."""
        found: dict[str, int] = {}
        there = cached_tokens
        for ttl, end in self.ends:
            found[ttl] = found.get(ttl, 0) + max(0, end - there)
            there = max(there, end)
        return found


def unnamed_session(request_id: str) -> SessionName:
    """Session of a request that names none: every gateway derives it from the id of the request."""
    return SessionName(f"request:{request_id}")
