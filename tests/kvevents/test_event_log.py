"""Events on the wire, their numbers, and what a replay repeats."""

from typing import Any

import msgspec
import pytest

from serving.config.kv_events import EventShape
from serving.kvevents.core.event_form import EventForm
from serving.kvevents.core.event_log import BATCH_BLOCKS, KvEventLog
from serving.values.kv_changes import CPU, GPU, BlocksRemoved, BlocksStored, KvChange, KvChanges
from tests.kvevents.cases import named, stored
from tests.kvevents.subscriber import SubscriberIndex, unpacked


def log_of(*changes: KvChange, shape: EventShape = "map", most: int = 100) -> KvEventLog:
    log = KvEventLog(EventForm(shape, "uint64", 2, 3), most, 100)
    log.open(1.5)
    log.publish(changes, 2.5)
    return log


STORED = {
    "type": "BlockStored",
    "block_hashes": [5, 6],
    "parent_block_hash": 4,
    "token_ids": [7, 7, 7, 7],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}
REMOVED = {"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU"}


@pytest.mark.parametrize(
    ("shape", "batches"),
    [
        (
            "array",
            [
                [1.5, [["AllBlocksCleared"]], 3],
                [2.5, [["BlockStored", *[*STORED.values()][1:]], ["BlockRemoved", [5], "GPU"]], 3],
            ],
        ),
        ("map", [[1.5, [{"type": "AllBlocksCleared"}], 3], [2.5, [STORED, REMOVED], 3]]),
        (
            "maps",
            [
                {"ts": 1.5, "events": [{"type": "AllBlocksCleared"}], "data_parallel_rank": 3},
                {"ts": 2.5, "events": [STORED, REMOVED], "data_parallel_rank": 3},
            ],
        ),
    ],
)
def test_the_three_forms(shape: EventShape, batches: list[Any]) -> None:
    log = log_of(stored(5, 2, parent=4), BlocksRemoved(GPU, [named(5)]), shape=shape)
    assert [(number, msgspec.msgpack.decode(payload)) for number, payload in log.replay(100, 9.0)] == [
        (100, batches[0]),
        (101, batches[1]),
    ]


def test_a_group_of_layers_has_its_number() -> None:
    log = log_of(stored(5, group=1), shape="array")
    assert unpacked(next(iter(log.replay(101, 0.0)))[1])[1][0]["group_idx"] == 1
    assert unpacked(next(iter(log_of(stored(5, group=1)).replay(101, 0.0)))[1])[1][0]["group_idx"] == 1


def test_whole_hashes() -> None:
    log = KvEventLog(EventForm("map", "bytes", 2), 9, 0)
    ((_, payload),) = log.publish([stored(5, parent=4)], 0.0)
    assert unpacked(payload)[1][0]["block_hashes"] == [named(5)]
    assert unpacked(payload)[1][0]["parent_block_hash"] == named(4)


def test_only_news_are_sent() -> None:
    log = log_of(stored(1, 3))
    assert log.publish([stored(1, 3), BlocksRemoved(GPU, [named(9)]), BlocksRemoved(CPU, [named(1)])], 0.0) == []
    ((_, payload),) = log.publish([stored(1, 5)], 0.0)
    (event,) = unpacked(payload)[1]
    assert (event["block_hashes"], event["parent_block_hash"], len(event["token_ids"])) == ([4, 5], 3, 4)


def test_a_block_of_two_scopes_stays_until_both_are_gone() -> None:
    log = log_of(BlocksStored(CPU, [named(1)], scope="a"), BlocksStored(CPU, [named(1)], scope="b"))
    assert log.publish([BlocksRemoved(CPU, [named(1)], "b"), BlocksRemoved(CPU, [named(1)], "c")], 0.0) == []
    assert len(log.publish([BlocksRemoved(CPU, [named(1)], "a")], 0.0)) == 1


def test_blocks_without_tokens_share_an_event_and_keep_their_order() -> None:
    changes = [BlocksStored(CPU, [named(one)]) for one in (1, 2)]
    ((_, payload),) = log_of().publish([*changes, BlocksRemoved(CPU, [named(1)]), changes[0]], 0.0)
    events = unpacked(payload)[1]
    assert [(event["type"], event["block_hashes"]) for event in events] == [
        ("BlockStored", [1, 2]),
        ("BlockRemoved", [1]),
        ("BlockStored", [1]),
    ]
    assert events[0]["token_ids"] == []


def test_large_changes_are_divided() -> None:
    log = log_of()
    batches = log.publish([stored(0, 2 * BATCH_BLOCKS + 1)], 0.0)
    sizes = [sum(len(event["block_hashes"]) for event in unpacked(payload)[1]) for _, payload in batches]
    assert sizes == [BATCH_BLOCKS, BATCH_BLOCKS, 1]


@pytest.mark.parametrize("start", [0, 50, 101, 102])
def test_a_replay_beyond_what_is_kept_builds_the_present_state(start: int) -> None:
    log = log_of(most=2)
    log.publish([stored(1, 3), stored(10, 2 * BATCH_BLOCKS, parent=3)], 0.0)
    log.publish([BlocksRemoved(GPU, [named(1)])], 0.0)
    log.publish([stored(1)], 0.0)  # its followers were stored before it
    last = log.next_number - 1
    batches = [*log.replay(start, 0.0)]
    numbers = [number for number, _ in batches]
    assert numbers == [*range(numbers[0], last + 1)]
    assert numbers[0] >= start
    index = SubscriberIndex(lambda _: batches)
    index.hear(last, batches[-1][1])
    assert index.media[GPU] == {1, 2, 3, *range(10, 10 + 2 * BATCH_BLOCKS)}
    seen: set[int | None] = {None}
    for _, payload in batches:
        for event in unpacked(payload)[1]:
            if event["type"] == "BlockStored":
                assert event["parent_block_hash"] in seen
                seen.update(event["block_hashes"])


def test_nothing_is_repeated_of_the_future() -> None:
    assert [*log_of().replay(102, 0.0)] == []


def test_whoever_comes_after_silence_gets_everything() -> None:
    log = log_of(stored(1, 2))
    log.pass_over([stored(3, parent=2), BlocksRemoved(GPU, [named(1)])])
    (greeting,) = log.greet(0.0)
    index = SubscriberIndex(lambda start: [*log.replay(start, 0.0)])
    index.hear(*greeting)
    assert index.media[GPU] == {2, 3}


def test_the_queue_is_bounded_and_tells_when_it_lost_something() -> None:
    changes = KvChanges(["default"], 2)
    for number in range(3):
        changes.note(stored(number))
    assert changes.lost
    assert len(changes) == 2
    changes.begin_again()
    changes.note(stored(7))
    assert changes.take(5) == [stored(7)]
    assert not changes.lost
