"""Blocks of the cache: none has two owners, none is lost."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.rollout.sequences import SCRATCH, BlockAllocator, num_blocks_for, num_shared_blocks


@pytest.mark.parametrize(("length", "shared"), [(1, 0), (127, 0), (128, 0), (129, 1), (256, 1), (257, 2), (2048, 15)])
def test_siblings_share_the_full_blocks_in_front_of_the_last_token(length: int, shared: int) -> None:
    assert num_shared_blocks(length, 128) == shared
    assert 1 <= length - 128 * shared <= 128


def test_blocks_of_columns() -> None:
    assert [num_blocks_for(columns, 128) for columns in (0, 1, 128, 129)] == [0, 1, 1, 2]


def test_a_shared_block_is_free_when_the_last_holder_lets_it_go() -> None:
    blocks = BlockAllocator(4)
    first = blocks.take(2)
    again = blocks.share(first[:1])
    blocks.release(first)
    assert (blocks.num_free, blocks.num_in_use, blocks.holders(first[0]), blocks.holders(first[1])) == (2, 1, 1, 0)
    blocks.release(again)
    assert (blocks.num_free, blocks.most_in_use) == (3, 2)
    with pytest.raises(AssertionError, match="is free"):
        blocks.release(again)
    with pytest.raises(AssertionError, match="is free"):
        blocks.share(first)
    with pytest.raises(AssertionError, match="4 blocks wanted, 3 are free"):
        blocks.take(4)


@given(data=st.data())
def test_no_block_has_two_owners_and_none_is_lost(data: st.DataObject) -> None:
    blocks = BlockAllocator(data.draw(st.integers(2, 12)))
    held: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        kind = data.draw(st.sampled_from(["take", "share", "release"]))
        if kind == "take":
            before = Counter(block for own in held for block in own)
            taken = blocks.take(data.draw(st.integers(0, blocks.num_free)))
            assert not set(taken) & set(before) and len(set(taken)) == len(taken) and SCRATCH not in taken
            held.append(taken)
        elif held and kind == "share":
            held.append(blocks.share(data.draw(st.sampled_from(held))))
        elif held:
            blocks.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        holders = Counter(block for own in held for block in own)
        assert all(blocks.holders(block) == count for block, count in holders.items())
        assert blocks.num_in_use == len(holders) and blocks.num_in_use + blocks.num_free == blocks.capacity
    for own in held:
        blocks.release(own)
    assert blocks.num_free == blocks.capacity
