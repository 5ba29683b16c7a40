"""The records of the journal say of every message whose it is, in any order of owners."""

from __future__ import annotations

import random

from nsquark.kernel.pure import BLOCK
from nsquark.log import JournalRecords, JournalState
from nsquark.nsqd.importing.channel_shares import ChannelShares


def owned(state: JournalState, name: str, end: int) -> dict[int, int]:
    """The unfinished positions of a channel, with their attempts."""
    channel = state.channels[name]
    fresh = [each for each in range(channel.position, end) if each not in channel.passed]
    return dict.fromkeys(fresh, 0) | {each: attempts for each, (attempts, _) in channel.waiting.items()}


def test_any_sequence_of_owners() -> None:
    generator = random.Random(3)
    for _ in range(100):
        state, records = JournalState(), JournalRecords()
        for number in range(4):
            records.create(number, f"c{number}", 10)
        expected: dict[int, dict[int, int]] = {number: {} for number in range(4)}
        shares = ChannelShares(records, range(4), 10)
        owners = {0: 0}
        for position in range(10, 60):
            if generator.random() < 0.3:
                chosen = generator.sample(range(4), generator.randrange(1, 5))
                owners = {number: generator.choice([0, 0, 1, 2]) for number in chosen}
            shares.add(position, owners)
            for number, attempts in owners.items():
                expected[number][position] = attempts
            if generator.random() < 0.1:
                shares.flush()
            if generator.random() < 0.05:  # it is resumed
                shares.flush()
                shares = ChannelShares(records, range(4), position + 1)
        shares.flush()
        assert state.apply(memoryview(records.block())[BLOCK.size :]) == b""
        for number in range(4):
            assert owned(state, f"c{number}", 60) == expected[number]
