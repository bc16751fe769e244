from __future__ import annotations

import inspect
import traceback
from pathlib import Path

import torch

from compilebisect.core.outcome import BACKEND_FAILED
from compilebisect.runtime.faults import causes, fault_from_error
from compilebisect.runtime.torch_internals import FRAME_SKIPPED, BreakEvent


def test_a_wrong_fake_kernel_is_named_with_what_tells_more() -> None:
    # As torch 2.13's assert_size_stride says it.
    text = (
        "expected size 4==4, stride 8==16 at dim=0\n"
        "Error in op: torch.ops.mine.pairs.default\n"
        "This error most often comes from a incorrect fake (aka meta) kernel for a custom op."
    )
    assert "torch.library.opcheck(torch.ops.mine.pairs.default" in fault_from_error(AssertionError(text)).hint
    assert fault_from_error(AssertionError("expected size 4==4")).hint == ""


def break_at(line: int, type: str, effect: str) -> BreakEvent:
    event = BreakEvent(RuntimeError("seen"), effect=effect, compiled=break_at.__code__)
    event.type, event.stack = type, [traceback.FrameSummary("model.py", line, "forward")]
    return event


def test_a_loop_that_is_given_up_for_a_break_inside_is_no_cause_of_its_own() -> None:
    branch = break_at(7, "Data-dependent branching", "resumed")
    loop = break_at(7, "graph break in loop", FRAME_SKIPPED)
    elsewhere = break_at(9, "graph break in loop", FRAME_SKIPPED)
    found = causes([branch, loop, elsewhere])
    assert found == [branch, elsewhere]
    assert branch.effect == FRAME_SKIPPED


def earlier(x):
    return x + 1


def outer(x):
    return inner(x)


def inner(x):
    return x


def backend_failure(function, operator: str, *callers) -> BreakEvent:
    """The backend does not take the frame of a function; the callers run in eager mode."""
    event = BreakEvent(RuntimeError("seen"), effect=FRAME_SKIPPED, compiled=function.__code__)
    event.type = BACKEND_FAILED
    event.message = (
        f"{BACKEND_FAILED}\n  Explanation: Backend compiler `x` failed with {operator}. Adding a graph break."
    )
    event.stack = [traceback.FrameSummary(__file__, caller.__code__.co_firstlineno + 1, "outer") for caller in callers]
    return event


def test_a_frame_that_the_backend_refuses_for_what_it_calls_is_no_cause() -> None:
    whole, part = backend_failure(outer, "lib.op.default"), backend_failure(inner, "lib.op.default", outer)
    assert causes([whole, part]) == [part]
    other = backend_failure(inner, "lib.other.default", outer)
    assert causes([whole, other]) == [whole, other]


def test_a_function_above_in_the_file_holds_nothing_of_one_below() -> None:
    # Methods of one file are all called `forward`, so only lines tell them apart.
    above = backend_failure(earlier, "lib.op.default")
    above.compiled_frame = "outer"
    part = backend_failure(inner, "lib.op.default", outer)
    assert causes([above, part]) == [above, part]


def break_of_library_code(*files: str) -> BreakEvent:
    """A frame of Python's own library is given up, reached through lines of these files."""
    event = BreakEvent(RuntimeError("seen"), effect=FRAME_SKIPPED, compiled=inspect.signature.__code__)
    event.type = "Attempt to trace generator"
    event.stack = [traceback.FrameSummary(file, 7, "called") for file in (*files, inspect.__file__)]
    return event


def test_what_dynamo_meets_in_torchs_own_compiler_at_work_is_no_break_of_the_model() -> None:
    compiler = f"{Path(torch.__file__).parent}/_functorch/_aot_autograd/runtime_wrappers.py"
    graph = f"{Path(torch.__file__).parent}/fx/graph.py"
    # a backward pass is compiled when it is run, from the user's line that runs it
    assert causes([break_of_library_code("model.py", compiler, graph)]) == []
    for mine in (["model.py"], ["model.py", compiler, "my_operator.py"]):
        event = break_of_library_code(*mine)
        assert causes([event]) == [event]
    own = break_at(7, "of my own", "resumed")
    own.stack = [traceback.FrameSummary(file, 7, "called") for file in ("model.py", compiler)]
    assert causes([own]) == [own]
