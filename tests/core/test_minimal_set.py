from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core.minimal_set import minimal_set


def search(members, needed):
    """Run the search against a fault that needs all of `needed`; returns the result and the number of questions."""
    steps = minimal_set(members)
    questions = 0
    try:
        candidate = next(steps)
        while True:
            questions += 1
            candidate = steps.send(set(needed) <= set(candidate))
    except StopIteration as stop:
        return stop.value, questions


@given(st.data())
def test_exactly_the_needed_members_are_left(data):
    size = data.draw(st.integers(1, 40))
    needed = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=5))
    found, _ = search(list(range(size)), needed)
    assert set(found) == needed


def test_one_culprit_among_many_takes_few_questions():
    _, questions = search(list(range(64)), {37})
    assert questions <= 20


def test_a_single_member_needs_no_question():
    assert search(["only"], {"only"}) == (("only",), 0)
