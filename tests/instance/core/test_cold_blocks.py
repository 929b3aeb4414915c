"""The queue of cold blocks: the oldest leave first, wherever others were removed; compared with a plain list."""

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.ids import BlockId
from serving.instance.core.block_pool import ColdBlocks


def blocks(*numbers: int) -> list[BlockId]:
    return [BlockId(number) for number in numbers]


def test_a_block_that_was_taken_back_and_released_again_counts_as_young() -> None:
    cold = ColdBlocks()
    cold.extend(blocks(7, 3, 5, 9))
    cold.remove(BlockId(5))
    assert (len(cold), list(cold)) == (3, blocks(7, 3, 9))
    cold.extend(blocks(5))
    assert list(cold) == blocks(7, 3, 9, 5)
    cold.remove(BlockId(5))
    cold.extend(blocks(5))  # two of its places are void now
    assert cold.take(3) == blocks(7, 3, 9)
    assert cold.take(1) == blocks(5)
    assert (len(cold), list(cold)) == (0, [])


@settings(max_examples=settings().max_examples // 3)
@given(st.data())
def test_it_is_a_list_from_which_the_front_and_single_blocks_are_taken(data: st.DataObject) -> None:
    cold, model, outside = ColdBlocks(), blocks(), blocks(*range(12))
    for _ in range(40):
        match data.draw(st.sampled_from(("extend", "remove", "take"))):
            case "extend":
                some = data.draw(st.lists(st.sampled_from(outside), unique=True)) if outside else []
                cold.extend(some)
                model += some
                outside = [one for one in outside if one not in some]
            case "remove" if model:
                one = data.draw(st.sampled_from(model))
                cold.remove(one)
                model.remove(one)
                outside.append(one)
            case "take":
                count = data.draw(st.integers(0, len(model)))
                taken, model = model[:count], model[count:]
                assert cold.take(count) == taken
                outside += taken
        assert (len(cold), list(cold)) == (len(model), model)


def test_places_that_were_taken_are_swept() -> None:
    """It took 2 KiB more for each request with the same prefix of 256 blocks, and stalled at the first eviction."""
    cold, prefix = ColdBlocks(), blocks(*range(256))
    cold.extend(prefix)
    first = len(pickle.dumps(cold))
    for _ in range(200):
        for block in prefix:
            cold.remove(block)
        cold.extend(prefix)
    assert list(cold) == list(prefix) == cold.take(len(prefix))
    for _ in range(5000):
        cold.extend(blocks(1, 2))
        assert cold.take(2) == blocks(1, 2)
    assert len(pickle.dumps(cold)) < 20 * first
