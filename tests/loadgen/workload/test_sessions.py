"""Conversations: turns, think times, and the model's length as a budget."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.plan import Conversation
from loadgen.workload.distributions import Fixed, Normal
from loadgen.workload.lengths import lengths, parse
from loadgen.workload.sessions import Sessions
from loadgen.workload.shared_prefix import SharedPrefix
from loadgen.workload.source import RandomPrompts, Source
from loadgen.workload.text_files import TextFiles
from loadgen.workload.words import PromptKind, Words

WORDS = Words((" a", " b", " c"), token_ids=(5, 6, 7))
SINGLE = Sessions(RandomPrompts(WORDS, lengths("uniform:5-9")), lengths("uniform:1-4"))


def take(workload: Sessions, count: int, seed: int = 0) -> list[Conversation]:
    return list(itertools.islice(workload.conversations(np.random.default_rng(seed)), count))


def test_single_requests_are_sessions_of_one_turn() -> None:
    for conversation in take(SINGLE, 50):
        (turn,) = conversation.turns
        assert turn.input_tokens == len(str(turn.prompt).split())
        assert 5 <= turn.input_tokens <= 9
        assert 1 <= turn.output_tokens <= 4
        assert (turn.think_s, conversation.tenant, conversation.arrival_s) == (0.0, "", None)


def test_turns_and_think_times_follow_their_distributions() -> None:
    sessions = replace(SINGLE, turns=lengths("uniform:1-5"), think_s=parse("lognormal:2,0.8"))
    drawn = take(sessions, 3000)
    assert {len(conversation.turns) for conversation in drawn} == {1, 2, 3, 4, 5}
    assert np.mean([len(conversation.turns) for conversation in drawn]) == pytest.approx(3, rel=0.03)
    assert all(conversation.turns[0].think_s == 0 for conversation in drawn)
    think = [turn.think_s for conversation in drawn for turn in conversation.turns[1:]]
    assert np.median(think) == pytest.approx(2, rel=0.05)

    sessions = replace(SINGLE, turns=lengths("4"), think_s=Normal(0.0, 1.0))
    think = [turn.think_s for conversation in take(sessions, 40) for turn in conversation.turns]
    assert min(think) == 0
    assert max(think) > 1


def test_sessions_repeat_and_are_told_as_they_are_sent() -> None:
    sessions = replace(SINGLE, turns=lengths("2"))
    assert take(sessions, 20) == take(sessions, 20)
    assert take(sessions, 20) != take(sessions, 20, seed=1)
    turns = [turn for conversation in take(SINGLE, 20) for turn in conversation.turns]
    assert {(turn.asked_input_tokens, turn.asked_output_tokens) for turn in turns} == {(None, None)}
    sessions = Sessions(RandomPrompts(replace(WORDS, tokens_per_word=1.3), lengths("4")), lengths("1"))
    assert take(sessions, 1)[0].turns[0].input_tokens is None
    sessions = Sessions(RandomPrompts(WORDS, lengths("uniform:0-1"), prefix_tokens=3), lengths("uniform:0-1"))
    turns = [conversation.turns[0] for conversation in take(sessions, 40)]
    assert {(turn.input_tokens, turn.asked_input_tokens) for turn in turns} == {(4, None), (4, 3)}
    assert {(turn.output_tokens, turn.asked_output_tokens) for turn in turns} == {(1, None), (1, 0)}


@settings(deadline=None)
@given(st.integers(2, 80), st.integers(0, 9), st.integers(1, 60), st.integers(1, 60), st.integers(1, 6))
def test_a_conversation_never_outgrows_the_model(
    most: int, overhead: int, asked: int, answered: int, turns: int
) -> None:
    if most < 2 + overhead:
        return
    sessions = Sessions(
        RandomPrompts(WORDS, lengths(f"uniform:1-{asked}")),
        lengths(f"uniform:1-{answered}"),
        lengths(str(turns)),
        max_model_tokens=most,
        turn_overhead_tokens=overhead,
    )
    for conversation in take(sessions, 10):
        assert 1 <= len(conversation.turns) <= turns
        total = sum((turn.input_tokens or 0) + turn.output_tokens + overhead for turn in conversation.turns)
        assert total <= most


def test_a_budget_shortens_the_first_turn_and_drops_later_ones_whole() -> None:
    sessions = Sessions(RandomPrompts(WORDS, lengths("10")), lengths("5"), lengths("9"), max_model_tokens=50)
    assert [(t.input_tokens, t.output_tokens) for t in take(sessions, 1)[0].turns] == [(10, 5)] * 3
    assert take(sessions, 1)[0].turns_left_out == 6
    long = Sessions(
        RandomPrompts(WORDS, lengths("normal:100,1")), lengths("normal:5,0.01"), lengths("9"), max_model_tokens=50
    )
    (conversation,) = take(long, 1)
    (turn,) = conversation.turns
    assert (turn.input_tokens, turn.output_tokens, conversation.turns_left_out) == (49, 1, 8)
    assert 95 < (turn.asked_input_tokens or 0) < 105
    assert turn.asked_output_tokens == 5


@pytest.mark.parametrize(
    ("source", "answer", "overhead", "fits"),
    [
        (RandomPrompts(WORDS, lengths("45")), "5", 0, True),
        (RandomPrompts(WORDS, lengths("46")), "5", 0, False),
        (RandomPrompts(WORDS, lengths("45")), "5", 1, False),
        (RandomPrompts(WORDS, lengths("5"), prefix_tokens=41), "5", 0, False),
        (RandomPrompts(WORDS, lengths("60", range_ratio=0.5)), "5", 0, True),
        (RandomPrompts(WORDS, lengths("uniform:46-90")), "5", 0, False),
        (RandomPrompts(WORDS, lengths("45")), "uniform:6-9", 0, False),
        (RandomPrompts(WORDS, lengths("lognormal:46,0")), "5", 0, False),
        (RandomPrompts(WORDS, lengths("lognormal:460,0.1")), "5", 0, True),
        (SharedPrefix(WORDS, lengths("5"), system_prompt_tokens=41), "5", 0, False),
        (TextFiles((), WORDS, lengths("46")), "5", 0, False),
    ],
)
def test_what_can_never_be_sent_as_asked_for_is_refused(source: Source, answer: str, overhead: int, fits: bool) -> None:
    def sessions() -> Sessions:
        return Sessions(source, lengths(answer), max_model_tokens=50, turn_overhead_tokens=overhead)

    if fits:
        assert len(take(sessions(), 1)) == 1
        return
    with pytest.raises(UsageError, match=r"no request fits the model.*takes 50 in all"):
        sessions()


def test_what_can_never_be_answered() -> None:
    with pytest.raises(UsageError, match="leaves no room"):
        replace(SINGLE, max_model_tokens=1)
    with pytest.raises(UsageError, match="leaves no room"):
        replace(SINGLE, max_model_tokens=10, turn_overhead_tokens=9)

    words = replace(WORDS, kind=PromptKind.IDS)
    sessions = Sessions(RandomPrompts(words, lengths("4")), lengths("1"), lengths("2"))
    with pytest.raises(UsageError, match="--prompt-kind text"):
        take(sessions, 1)
    (turn,) = take(replace(sessions, turns=lengths("1")), 1)[0].turns
    assert isinstance(turn.prompt, list)


def test_tenants_keep_their_name_through_the_conversation() -> None:
    sessions = Sessions(
        SharedPrefix(WORDS, lengths("2"), tenants=3, system_prompt_tokens=4), lengths("1"), lengths("2"), Fixed(0.5)
    )
    drawn = take(sessions, 60)
    assert {conversation.tenant for conversation in drawn} == {"tenant-0", "tenant-1", "tenant-2"}
    assert [turn.input_tokens for turn in drawn[0].turns] == [6, 2]
    assert [turn.think_s for turn in drawn[0].turns] == [0.0, 0.5]
