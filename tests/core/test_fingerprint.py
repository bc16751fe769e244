from __future__ import annotations

import msgspec
import pytest

from compilebisect.core.fingerprint import fault_key, fingerprint, reason_of, telling_words, worst
from compilebisect.core.outcome import Fault, Frame, Kind, Stage

BREAK = Fault(
    kind=Kind.GRAPH_BREAK,
    type="Data-dependent branching",
    stage=Stage.DYNAMO,
    frames=(Frame("/home/a/model.py", 10, "forward", "if x.sum() > 0:"),),
    location=Frame("/home/a/model.py", 10, "forward", "if x.sum() > 0:"),
)
CPP_ERROR = Fault(kind=Kind.ERROR, type="CppCompileError", message="g++ /tmp/abc/x.cpp failed", stage=Stage.CPP)


def moved(fault, **changes):
    place = Frame(**{**msgspec.structs.asdict(fault.location), **changes})
    return msgspec.structs.replace(fault, frames=(place,), location=place)


def test_the_fingerprint_holds_neither_folder_nor_line_number():
    elsewhere = moved(BREAK, file="/srv/other/model.py", line=99)
    assert fingerprint(BREAK, "Net") == fingerprint(elsewhere, "Net")


def test_the_fingerprint_does_not_hold_the_message():
    other = msgspec.structs.replace(CPP_ERROR, message="g++ /tmp/xyz/y.cpp failed")
    assert fingerprint(CPP_ERROR, "ReLU") == fingerprint(other, "ReLU")


def test_another_line_of_code_is_another_fault():
    other = moved(BREAK, code="if x.mean() > 0:")
    assert fingerprint(BREAK, "Net") != fingerprint(other, "Net")
    assert fault_key(BREAK) != fault_key(other)


def test_faults_without_a_line_are_told_apart_by_the_class_of_their_module():
    assert fingerprint(CPP_ERROR, "ReLU") != fingerprint(CPP_ERROR, "GELU")


def test_a_place_without_user_frames_is_no_part_of_the_identity():
    seen = msgspec.structs.replace(CPP_ERROR, location=Frame("model.py", 3, "forward", "x"))
    assert fault_key(seen) == fault_key(CPP_ERROR)


def test_crash_is_worse_than_a_graph_break():
    assert worst([Kind.GRAPH_BREAK, Kind.CRASH, Kind.ERROR]) is Kind.CRASH
    assert worst([]) is None


RAISED = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"


@pytest.mark.parametrize(
    ("type", "message", "words"),
    [
        (
            "RuntimeError",
            RAISED + "RuntimeError: There was no fake impl registered for <CustomOpDef(mine::grad)>. This is necessary",
            ("There was no fake impl registered for", "mine::grad"),
        ),
        (
            "RuntimeError",
            "RuntimeError: shape '[4, 3]' is invalid for input of size 8",
            ("is invalid for input of size",),
        ),
        ("RuntimeError", "RuntimeError: aten::mm failed", ()),
        ("KeyError", "KeyError: 'a'", ()),
        ("AssertionError", "AssertionError: expected size 4==4, stride 8==16 at dim=0", ()),
        ("CompilationError", "a type that tells enough by itself", ()),
    ],
)
def test_an_error_of_a_common_type_is_told_by_words_that_stay(type, message, words):
    assert telling_words(Fault(kind=Kind.ERROR, type=type, message=message)) == words


def test_the_reason_is_what_the_innermost_exception_says():
    assert reason_of(RAISED + "RuntimeError: no good\nat line 3") == "no good"
    assert reason_of("torch._inductor.exc.InductorError: AssertionError: odd size") == "odd size"
    assert reason_of("ValueError") == "ValueError"
