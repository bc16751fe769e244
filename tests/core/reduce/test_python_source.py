from __future__ import annotations

import ast
import hashlib
from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from compilebisect.core.reduce.script_text import size
from tests.core.reduce.fake_torch import fault_line
from tests.core.reduce.scripted_run import is_frozen, reduce, script

SCRIPTS = ("assembled", "blocks", "branches", "shapes")
# Each proposal costs a compile.
MOST_PROPOSALS = {"assembled": 115, "blocks": 170, "branches": 95, "shapes": 50}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_reduced_to_what_reaches_the_kept_line(name: str):
    text = script(name)
    line = fault_line(text)
    assert line is not None
    found, proposed = reduce(text, lambda candidate: fault_line(candidate) == line, (line,))
    assert found == script(f"{name}.reduced")
    assert len(proposed) <= MOST_PROPOSALS[name]
    assert len(set(proposed)) == len(proposed)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_was_reduced_has_only_a_few_questions_left(name: str):
    text = script(f"{name}.reduced")
    line = fault_line(text)
    assert line is not None
    found, proposed = reduce(text, lambda candidate: fault_line(candidate) == line, (line,))
    assert found == text
    assert len(proposed) <= 60


@pytest.mark.parametrize("name", SCRIPTS)
def test_half_of_the_lines_are_gone_after_half_of_the_questions(name: str):
    text = script(name)
    line, sizes = fault_line(text), [size(text, is_frozen)[0]]

    def shows(candidate):
        is_same = fault_line(candidate) == line
        sizes.append(size(candidate, is_frozen)[0] if is_same else sizes[-1])
        return is_same

    reduce(text, shows, (str(line),))
    assert sizes[len(sizes) // 2] - sizes[-1] <= (sizes[0] - sizes[-1]) / 2


PLAIN = '''"""What this is."""
# ünïcode
import functools, os, sys


@functools.lru_cache
@functools.wraps(print)
def half(value, times=2):
    s = 'ü'; value = value + len(s)  ;  t = 3  # three on one line
    if value: return value // 2
    else: pass


def ratio(one: int = 1, *, other: float = 0.25) -> float:
    text = f"""
  {one:>3} is not moved
"""
    for _ in range(1):
        with open(os.devnull) as file:

            # above
            result = one / (
                other  # inside
                - 0.25
            )


            print(text, file=file)  # trailing
        break
    return result


def main():
    half(3)
    ratio(12)



    sys.exit(0)  # three blank lines above stay


if __name__ == "__main__":
    main()
'''


def divides_by_zero(text: str) -> bool:
    try:
        exec(compile(text, "<script>", "exec", dont_inherit=True), {"__name__": "__main__"})
    except ZeroDivisionError:
        return True
    except (Exception, SystemExit):  # noqa: BLE001 - a script that goes wrong in any other way shows nothing
        return False
    return False


def test_a_fault_without_a_kept_line_is_reduced_to_its_expression():
    found, _ = reduce(PLAIN, divides_by_zero)
    assert (
        found
        == """# ünïcode
import sys


def half(value, times=2):
    pass


def ratio(one, *, other = 1.0):
    result = one / (
        other  # inside
        - 1.0
    )


def main():
    half(3)
    ratio(12)



    sys.exit(0)  # three blank lines above stay


if __name__ == "__main__":
    main()
"""
    )


def test_a_text_that_shows_the_fault_whatever_is_left_loses_all_that_is_not_frozen():
    found, proposed = reduce(script("shapes"), lambda candidate: True)
    assert size(found, is_frozen)[0] <= 3
    assert len(proposed) <= 12


def test_a_text_without_anything_to_edit_is_not_asked_about():
    text = "# head\n\n\nif __name__ == '__main__':\n    print(3)\n"
    assert reduce(text, lambda candidate: True) == (text, [])


def test_all_occurrences_of_a_number_shrink_together():
    text = "first = 48\nsecond = [48, 7]\nif __name__ == '__main__':\n    print(first, second)\n"

    def shows(candidate):
        names: dict = {}
        exec(candidate, names)
        return names.get("first", 0) > 5 and names.get("second", [])[:1] == [names["first"]]

    found, _ = reduce(text, shows)
    assert found == "first = 6\nsecond = [6]\nif __name__ == '__main__':\n    print(first, second)\n"


def statements_in(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return sorted({line for line in lines if line and not line.startswith(("#", '"""', "@", "import", "from"))})


@given(st.sampled_from([*SCRIPTS, "plain"]), st.data(), st.integers(0, 2**32), st.sampled_from([0, 25, 60]))
# Without shrinking, which would take minutes.
@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_any_fault_leaves_a_script_that_shows_it(name: str, data: st.DataObject, seed: int, percent: int):
    """The fault needs some lines, and besides goes away for some texts by chance."""
    text = PLAIN if name == "plain" else script(name)
    lines = statements_in(text)
    needed = data.draw(st.sets(st.sampled_from(lines), max_size=4))
    keep = data.draw(st.sets(st.sampled_from(lines), max_size=2))

    def shows(candidate):
        chance = int(hashlib.sha256(f"{seed}{candidate}".encode()).hexdigest(), 16) % 100
        return candidate == text or (needed <= {line.strip() for line in candidate.splitlines()} and chance >= percent)

    found, proposed = reduce(text, shows, tuple(keep))
    assert shows(found)
    assert len(set(proposed)) == len(proposed)
    assert len(proposed) <= 12 * len(text.splitlines())
    kept = Counter(line.strip() for line in text.splitlines() if line.strip() in keep)
    frozen = [ast.get_source_segment(text, item) for item in ast.parse(text).body if is_frozen(item)]
    smallest = size(text, is_frozen)
    for candidate in proposed:
        tree = ast.parse(candidate)
        assert [ast.get_source_segment(candidate, item) for item in tree.body if is_frozen(item)] == frozen
        assert Counter(line.strip() for line in candidate.splitlines()) >= kept
        assert size(candidate, is_frozen) <= smallest
        assert candidate.count("\n\n\n\n") <= text.count("\n\n\n\n")  # gaps that were wide may stay
        if shows(candidate):
            smallest = size(candidate, is_frozen)
