from __future__ import annotations

from compilebisect.core.blame import owner_below
from compilebisect.core.call import CallContext
from compilebisect.core.module_tree import CodeSpan, GoldenCall, ModuleRecord, ModuleTree
from compilebisect.core.outcome import Fault, Frame, Kind

CALL = GoldenCall(index=0, signature="", count=1, context=CallContext())


def record(path, children, *spans):
    return ModuleRecord(
        path=path,
        class_name="C",
        class_id=f"m:{path}",
        config="",
        children=tuple(children),
        calls=(CALL,),
        methods=tuple(CodeSpan("m.py", first, last, name, name == "forward") for first, last, name in spans),
    )


def wrapped(path, children, first, last):
    """A module whose forward stands below a decorator of a library."""
    plain = record(path, children, (first, last, "forward"))
    decorator = CodeSpan("lib.py", 1, 9, "forward", True)
    return ModuleRecord(
        **{name: getattr(plain, name) for name in plain.__struct_fields__ if name != "methods"},
        methods=(decorator, *plain.methods),
    )


def fault(*places):
    frames = tuple(Frame(file, line, "f", f"line {line}") for file, line in places)
    return Fault(kind=Kind.GRAPH_BREAK, type="t", frames=frames, location=frames[-1])


TREE = ModuleTree([record("", ["a"], (1, 9, "forward"), (10, 19, "helper")), record("a", [], (20, 29, "forward"))])


def test_a_frame_in_the_childs_forward_is_the_childs():
    assert owner_below(TREE, "", fault(("m.py", 5), ("m.py", 25))) == "a"


def test_a_plain_function_belongs_to_the_module_that_called_it():
    assert owner_below(TREE, "", fault(("m.py", 5), ("m.py", 25), ("tools.py", 3))) == "a"
    assert owner_below(TREE, "", fault(("m.py", 5), ("tools.py", 3))) is None


def test_a_helper_method_of_the_module_stays_its_own():
    assert owner_below(TREE, "", fault(("m.py", 5), ("m.py", 15))) is None


def test_a_decorator_around_a_childs_forward_belongs_to_the_child():
    tree = ModuleTree([wrapped("", ["a"], 1, 9), wrapped("a", [], 20, 29)])
    assert owner_below(tree, "", fault(("lib.py", 4), ("m.py", 5), ("lib.py", 4))) == "a"
    assert owner_below(tree, "", fault(("lib.py", 4))) is None
    assert owner_below(tree, "", fault(("lib.py", 4), ("m.py", 5))) is None


def test_of_two_modules_of_one_class_the_one_that_is_not_known_to_be_healthy_is_named():
    tree = ModuleTree(
        [
            record("", ["a", "b"], (1, 9, "forward")),
            record("a", [], (20, 29, "forward")),
            record("b", [], (20, 29, "forward")),
        ]
    )
    seen = fault(("m.py", 5), ("m.py", 25))
    assert owner_below(tree, "", seen) == "a"
    assert owner_below(tree, "", seen, healthy={"a"}) == "b"
