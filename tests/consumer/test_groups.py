"""Goal: each queue of a group has one owner at a time, and the members share the queues as those of
4.9.3 do.
Method: shares of every small number of queues and members; members that join, leave and are dropped
in random order, with the owners of every queue checked after each step."""

from __future__ import annotations

import gc
import random

import pytest

from pyrocketstore.consumer.groups import ConsumerGroups, Group, averagely
from support.seed import SEED


class Member:
    """The object that a group refers to weakly."""


class Changes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def group_of() -> tuple[Group, Changes]:
    changes = Changes()
    return Group("g", changes), changes


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("queue_count", range(10))
def test_shares_are_contiguous_and_even(queue_count: int, count: int) -> None:
    queues = [("t", number) for number in range(queue_count)]
    shares = [averagely(queues, count, index) for index in range(count)]
    assert [queue for share in shares for queue in share] == queues
    sizes = [len(share) for share in shares]
    assert sizes == sorted(sizes, reverse=True) and max(sizes) - min(sizes) <= 1


def test_a_queue_waits_for_its_owner_to_let_go() -> None:
    group, changes = group_of()
    one, other = Member(), Member()
    queues = {"t": [0, 1, 2, 3]}
    first = group.join(one, ["t"], {})
    assert group.assign(first, queues) == [("t", n) for n in range(4)]
    second = group.join(other, ["t"], {})
    assert group.assign(second, queues) == [], "the first one reads them still"
    before = changes.count, group.version
    assert group.assign(first, queues) == [("t", 0), ("t", 1)]
    assert (changes.count, group.version) == (before[0] + 1, before[1] + 1)
    assert group.assign(second, queues) == [("t", 2), ("t", 3)]
    assert group.assign(first, queues) == [("t", 0), ("t", 1)]
    assert changes.count == before[0] + 1, "nothing else has changed"


def test_only_readers_of_a_topic_share_it() -> None:
    group, _ = group_of()
    members = [Member() for _ in range(3)]
    both, only_t, only_u = (
        group.join(member, topics, {})
        for member, topics in zip(members, (["t", "u"], ["t"], ["u"]), strict=True)
    )
    assert group.assign(both, {"t": [0, 1], "u": [0, 1, 2]}) == [("t", 0), ("u", 0), ("u", 1)]
    assert group.assign(only_t, {"t": [0, 1]}) == [("t", 1)]
    assert group.assign(only_u, {"u": [0, 1, 2]}) == [("u", 2)]


def test_a_member_that_leaves_frees_its_queues_once() -> None:
    group, changes = group_of()
    one, other = Member(), Member()
    first, second = group.join(one, ["t"], {}), group.join(other, ["t"], {})
    group.assign(first, {"t": [0]})
    before = changes.count
    for _ in range(2):
        group.leave(first)
    assert changes.count == before + 1 and group.size == 1
    assert group.assign(first, {"t": [0]}) == []
    assert group.assign(second, {"t": [0]}) == [("t", 0)]


def test_a_member_that_is_dropped_is_gone() -> None:
    group, changes = group_of()
    one, other = Member(), Member()
    first, second = group.join(one, ["t"], {}), group.join(other, ["t"], {})
    group.assign(first, {"t": [0, 1]})
    before = changes.count
    del one
    gc.collect()
    assert changes.count == before + 1, "the others are woken"
    assert group.size == 1
    assert group.assign(second, {"t": [0, 1]}) == [("t", 0), ("t", 1)]


def test_the_first_offsets_are_those_of_the_first_member() -> None:
    group, _ = group_of()
    one, other = Member(), Member()
    first = group.join(one, ["t"], {("t", 0): (5, None)})
    second = group.join(other, ["t"], {("t", 0): (9, None), ("t", 1): (7, None)})
    assert group.first_offsets == {("t", 0): (5, None), ("t", 1): (7, None)}
    group.leave(first)
    assert group.first_offsets, "kept for the other member"
    group.leave(second)
    assert group.first_offsets == {}


def test_members_without_first_offsets() -> None:
    group, _ = group_of()
    assert group.begins_at_end()
    one, other = Member(), Member()
    first = group.join(one, ["t"], None)
    group.join(other, ["t"], {})
    assert not group.begins_at_end()
    group.leave(first)
    assert group.begins_at_end()
    group.join(Member(), ["t"], None)
    gc.collect()
    assert group.begins_at_end(), "that member is gone"


def test_random_members() -> None:
    chosen = random.Random(SEED)
    group, _ = group_of()
    members: dict[int, tuple[Member, list[str]]] = {}
    held: dict[int, set[tuple[str, int]]] = {}
    queues = {"t": list(range(5)), "u": list(range(3))}
    for _ in range(500):
        step = chosen.randrange(6)
        if step == 0:
            topics = chosen.choice([["t"], ["u"], ["t", "u"]])
            member = Member()
            members[group.join(member, topics, {})] = member, topics
            del member
        elif members:
            number = chosen.choice(list(members))
            if step == 1:
                group.leave(number)
            if step < 3:
                del members[number]
                held.pop(number, None)
                gc.collect()
            else:
                wanted = {topic: queues[topic] for topic in members[number][1]}
                held[number] = set(group.assign(number, wanted))
        owned = [queue for one in held.values() for queue in one]
        assert len(owned) == len(set(owned)), "one owner each"
        assert group.size == len(members)
    for _ in range(2):  # once all have looked, each queue with a reader has an owner
        for number, (_, topics) in members.items():
            held[number] = set(group.assign(number, {topic: queues[topic] for topic in topics}))
    read = {topic for _, topics in members.values() for topic in topics}
    owned = [queue for one in held.values() for queue in one]
    assert sorted(owned) == [(topic, n) for topic in sorted(read) for n in queues[topic]]


def test_a_group_is_made_once() -> None:
    changes = Changes()
    groups = ConsumerGroups(changes)
    one = groups.group("g")
    assert groups.group("g") is one and groups.group("h") is not one
    one.join(Member(), ["t"], {})
    assert changes.count > 0
