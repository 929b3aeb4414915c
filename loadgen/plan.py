"""Requests to send and their times, as plain values: messages, turns, conversations, jobs.

A workload makes conversations without a notion of time; an arrival process makes times without a notion of content;
`LoadJob` joins the two. Jobs are drawn before they are due and travel to the worker processes as msgpack, so that a
worker only has to look at its clock. Times are seconds from the start of the run.
"""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Speaker of a chat message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class PromptMessage(msgspec.Struct, frozen=True):
    """One chat message."""

    role: Role
    content: str


Prompt = str | list[int | PromptMessage]
"""Text, token ids or messages; a list holds one kind only (it is one type because msgpack could not distinguish
two)."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a conversation.

    Attributes:
        prompt: addition of this turn. Text or token ids for the completions endpoint; messages or text (= one user
            message) for chat. In a later turn of a conversation it follows the history (earlier prompts and the
            server's responses).
        output_tokens: tokens requested (`max_tokens`).
        input_tokens: tokens of `prompt` as planned, None if not counted; the server's count is in the record.
        asked_input_tokens, asked_output_tokens: the workload's lengths if the plan changed them, because the model
            cannot take so many tokens or because at least one must be sent; None = as planned.
        think_s: pause between the end of the previous turn's response and this turn [s]; 0 for the first turn.
        waits_for: turns of the conversation, counted from 0, whose ends it waits for, if not just for the turn before.
            Only in conversations without history.
        hash_ids: identity of the prompt's blocks of `block_tokens` tokens each, as in a Mooncake trace: equal ids at
            equal positions are equal prefixes. Empty if unknown.
        block_tokens: tokens of one block of `hash_ids`; 0 without them.
        body: exact request body, for replays; overrides all other fields. None = the endpoint renders it.
    """

    prompt: Prompt
    output_tokens: int
    input_tokens: int | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    think_s: float = 0.0
    waits_for: list[int] = []
    hash_ids: list[int] = []
    block_tokens: int = 0
    body: bytes | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Turns that follow each other; most workloads have one.

    Attributes:
        tenant: name of the group (system prompt, customer) that it belongs to; empty if there are none.
        arrival_s: arrival of its first turn in the data set [s from the data set's start]; None for workloads without
            their own times.
        history: whether later turns carry the earlier prompts and the server's responses.
        turns_left_out: turns at its end that would not have fitted the model after their history.
    """

    turns: list[Turn]
    tenant: str = ""
    arrival_s: float | None = None
    history: bool = True
    turns_left_out: int = 0


def if_changed(asked: int, sent: int) -> int | None:
    """Value of `Turn.asked_input_tokens` and `Turn.asked_output_tokens`."""
    return asked if asked != sent else None


class Conduct(StrEnum):
    """How the client behaves towards the server in one request."""

    NORMAL = "normal"
    DISCONNECT = "disconnect"  # leaves at a random moment
    SLOW_READER = "slow_reader"  # reads the stream slower than it arrives
    TIMEOUT = "timeout"  # gives up after a short time
    MALFORMED = "malformed"  # sends a body that is no valid request


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Conduct with its numbers; only those of the conduct itself count.

    Attributes:
        leave_after_s: `DISCONNECT`: seconds after sending at which the client closes the connection.
        leave_after_chunks: `DISCONNECT`: chunks of content after which it closes; whichever comes first.
        read_bytes_per_s: `SLOW_READER`: how fast it reads.
        give_up_after_s: `TIMEOUT`: deadline of the whole request [s]. For every other conduct the run's own timeout.
        malformation: `MALFORMED`: which of the known malformations (index, see `client.malformed`).
    """

    conduct: Conduct = Conduct.NORMAL
    leave_after_s: float | None = None
    leave_after_chunks: int | None = None
    read_bytes_per_s: float | None = None
    give_up_after_s: float | None = None
    malformation: int = 0


class LoadJob(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation with its time and its behaviour: the unit that a worker gets.

    Attributes:
        index: position in the run's plan, from 0; a session's records share it.
        due_s: intended send time of the first turn [s from the start of the run]; None in a closed loop (when a slot is
            free).
        warmup: sent, but left out of every statistic.
        behaviours: one per turn, or empty for all normal.
    """

    index: int
    conversation: Conversation
    due_s: float | None = None
    warmup: bool = False
    behaviours: list[Behaviour] = []

    def behaviour(self, turn: int) -> Behaviour:
        """How the client behaves in one turn."""
        return self.behaviours[turn] if self.behaviours else _NORMAL


_NORMAL = Behaviour()
