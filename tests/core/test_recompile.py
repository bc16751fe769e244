from __future__ import annotations

import msgspec

from compilebisect.core.fingerprint import fingerprint
from compilebisect.core.guard_text import Cause
from compilebisect.core.outcome import Frame, Kind, Stage
from compilebisect.core.recompile import RecompileEvent, judge_recompiles

FORWARD = Frame(file="m.py", line=10, function="forward")
LINE = Frame(file="m.py", line=12, function="forward", code="self.step += 1")


def size(dim: int, before: str, after: str, **fields: object) -> RecompileEvent:
    values = {"frame": FORWARD, "cause": Cause.SIZE, "subject": "x", "dim": dim, "before": before, "after": after}
    return msgspec.convert({**values, **fields}, RecompileEvent)


def counted(number: int, **fields: object) -> RecompileEvent:
    return RecompileEvent(
        **{
            "frame": FORWARD,
            "owner": "enc",
            "cause": Cause.VALUE,
            "subject": "self.step",
            "before": str(number),
            "after": str(number + 1),
            "is_attribute": True,
            "entries": number + 1,
            "frames": (LINE,),
            "during": f"call {number + 2}",
            **fields,
        }
    )


def faults(events: list[RecompileEvent], *, can_turn_dynamic: bool = True, limit: int = 8):
    seen = judge_recompiles(events, can_turn_dynamic=can_turn_dynamic, limit=limit)
    assert seen.count == len(events)
    return seen.faults


def test_a_size_that_is_made_dynamic_is_counted_and_is_no_fault():
    events = [size(0, "2", "4", is_first_change=True), size(1, "16", "32", is_first_change=True)]
    assert not faults(events)


def test_the_same_size_again_is_a_fault():
    (fault,) = faults([size(1, "16", "32", is_first_change=True), size(1, "32", "64")])
    assert (fault.kind, fault.stage, fault.type) == (Kind.RECOMPILE, Stage.DYNAMO, "size of dim 1 of x")
    assert fault.evidence["count"] == 2 and not fault.evidence["limit_hit"]


def test_a_size_that_changed_unseen_before_is_a_fault_the_first_time():
    assert faults([size(0, "2", "4", is_first_change=True), size(1, "32", "64")])[0].type == "size of dim 1 of x"


def test_where_nothing_is_made_dynamic_the_first_change_is_a_fault():
    (fault,) = faults([size(1, "16", "32", is_first_change=True)], can_turn_dynamic=False)
    assert "dynamic=True" in fault.hint


def test_a_counter_on_a_module_is_one_fault_of_that_module_at_its_line():
    (fault,) = faults([counted(number) for number in range(9)])
    assert (fault.type, fault.owners, fault.location) == ("value of self.step", ("enc",), LINE)
    assert fault.evidence["count"] == 9 and fault.evidence["limit_hit"]
    assert "allow_unspec_int_on_nn_module" in fault.hint
    assert [item["before"] for item in fault.evidence["recompiles"]] == [str(number) for number in range(9)]


def test_the_fingerprint_holds_no_number():
    few, many = (faults([counted(number + start) for number in range(3)])[0] for start in (0, 40))
    assert fingerprint(few, "Net") == fingerprint(many, "Net")


def test_code_made_for_another_instance_is_no_fault_below_the_limit():
    events = [counted(n, owner=None, instance=f"layers.{n + 1}", made_for=f"layers.{n}") for n in range(5)]
    assert not faults(events)


def test_more_instances_than_the_limit_are_a_fault_of_them_all():
    events = [counted(n, owner=None, instance=f"layers.{n + 1}", made_for=f"layers.{n}") for n in range(9)]
    (fault,) = faults(events)
    assert sorted(fault.owners) == [f"layers.{n}" for n in range(10)]
    assert fault.evidence["limit_hit"] and fault.evidence["between_instances"]
    assert "recompile_limit" in fault.hint


def test_instances_that_differ_in_two_functions_by_one_attribute_are_one_fault():
    def between(line: int, **fields: object) -> list[RecompileEvent]:
        frame = Frame(file="m.py", line=line, function="forward")
        return [
            counted(n, owner=None, frame=frame, instance=f"layers.{n + 1}", made_for=f"layers.{n}", **fields)
            for n in range(9)
        ]

    assert len(faults([*between(10), *between(14)])) == 1, "a function and what is left of it after a graph break"
    assert len(faults([*between(10), *between(14, subject="self.width")])) == 2


def test_what_two_modules_change_are_two_faults():
    assert len(faults([counted(0), counted(0, owner="head")])) == 2


def test_a_size_of_one_is_said_to_be_special():
    (fault,) = faults([size(0, "4", "1", is_first_change=True), size(0, "1", "8")])
    assert fault.evidence["is_of_size_one"] and "size of 0 or 1" in fault.hint
    (fault,) = faults([size(0, "4", "1", is_first_change=True), size(0, "8", "16")])
    assert not fault.evidence["is_of_size_one"]
