from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.reduce.search import smallest_subset


def search(members, shows, **options):
    """Run the search against a predicate; returns the result and what was proposed."""
    steps = smallest_subset(members, **options)
    proposed = []
    try:
        candidate = next(steps)
        while True:
            proposed.append(candidate)
            candidate = steps.send(shows(candidate))
    except StopIteration as stop:
        return stop.value, proposed


def needs(*needed):
    return lambda candidate: set(needed) <= set(candidate)


@pytest.mark.parametrize(("culprits", "most"), [(1, 25), (4, 80), (8, 130)])
def test_few_culprits_among_many_members_take_few_questions(culprits: int, most: int):
    for seed in range(200):
        needed = random.Random(seed).sample(range(1024), culprits)
        found, proposed = search(range(1024), needs(*needed))
        assert found == tuple(sorted(needed))
        assert len(proposed) <= most


def test_members_that_are_all_needed_take_one_question_each():
    found, proposed = search(range(40), needs(*range(40)))
    assert found == tuple(range(40))
    assert len(proposed) <= 48


def test_a_single_member_needs_no_question():
    assert search(["only"], needs("only")) == (("only",), [])


def test_no_members_need_no_question():
    assert search([], needs()) == ((), [])
    assert search([], needs(), allow_empty=True) == ((), [])


def test_the_empty_set_is_proposed_first_and_only_on_request():
    found, proposed = search(range(5), needs(), allow_empty=True)
    assert (found, proposed) == ((), [()])
    found, proposed = search(range(5), needs())
    assert len(found) == 1
    assert () not in proposed


def test_members_need_not_be_hashable():
    members = [[number] for number in range(8)]
    found, _ = search(members, lambda candidate: [3] in candidate and [6] in candidate)
    assert found == ([3], [6])


@given(st.data())
def test_exactly_the_needed_members_are_left(data: st.DataObject):
    size = data.draw(st.integers(1, 40))
    needed = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size))
    found, _ = search(range(size), needs(*needed))
    assert found == tuple(sorted(needed))


@given(st.integers(0, 24), st.integers(), st.floats(0.05, 0.95), st.booleans())
def test_any_fault_that_comes_and_goes_ends_with_needed_members(size: int, seed: int, share: float, allow_empty: bool):
    members = tuple(range(size))

    def shows(candidate):
        return candidate == members or random.Random(f"{seed} {candidate}").random() < share

    found, proposed = search(members, shows, allow_empty=allow_empty)
    assert shows(found)
    assert len(set(proposed)) == len(proposed)
    assert members not in proposed
    assert all(list(candidate) == sorted(candidate) for candidate in proposed)
    for member in found:
        rest = tuple(other for other in found if other != member)
        assert not shows(rest) or (not rest and not allow_empty)
    assert allow_empty or () not in proposed
