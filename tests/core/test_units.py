from __future__ import annotations

from compilebisect.core.call import CallContext
from compilebisect.core.module_tree import GoldenCall, ModuleRecord, ModuleTree
from compilebisect.core.units import leaves_first, units_of


def record(path, children=(), *, config="", signature="f32[2]", called=True, class_id="m:C"):
    call = GoldenCall(index=0, signature=signature, count=1, context=CallContext())
    return ModuleRecord(
        path=path,
        class_name="C",
        class_id=class_id,
        config=config,
        children=tuple(children),
        calls=(call,) if called else (),
    )


def unit_paths(*records):
    return [unit.paths for unit in units_of(ModuleTree(records))]


def test_equal_siblings_are_one_unit_and_the_first_stands_for_all():
    root = record("", ["a", "b"], class_id="m:Root")
    assert unit_paths(root, record("a"), record("b")) == [("a", "b"), ("",)]


def test_another_configuration_makes_another_unit():
    root = record("", ["a", "b"], class_id="m:Root")
    assert unit_paths(root, record("a", config="p=1"), record("b", config="p=2")) == [("a",), ("b",), ("",)]


def test_another_input_shape_makes_another_unit():
    root = record("", ["a", "b"], class_id="m:Root")
    assert unit_paths(root, record("a"), record("b", signature="f32[3]")) == [("a",), ("b",), ("",)]


def test_containers_with_different_children_are_different_units():
    root = record("", ["a", "b"], class_id="m:Root")
    records = [root, record("a", ["a.x"]), record("a.x"), record("b", ["b.x"]), record("b.x", class_id="m:Other")]
    assert unit_paths(*records) == [("a.x",), ("a",), ("b.x",), ("b",), ("",)]


def test_uncalled_modules_are_in_no_unit():
    root = record("", ["a"], class_id="m:Root")
    assert unit_paths(root, record("a", called=False)) == [("",)]


def test_a_shared_module_stands_before_all_of_its_parents():
    tree = ModuleTree([record("", ["a", "b"]), record("a", ["a.s"]), record("a.s"), record("b", ["a.s"])])
    order = leaves_first(tree)
    assert order == ["a.s", "a", "b", ""]
    assert tree.ancestors("a.s") == ["", "a", "b"]


def test_called_children_look_through_uncalled_containers():
    tree = ModuleTree(
        [record("", ["layers"]), record("layers", ["layers.0"], called=False), record("layers.0"), record("x")]
    )
    assert tree.called_children("") == ["layers.0"]
    assert tree.called_parents("layers.0") == [""]
