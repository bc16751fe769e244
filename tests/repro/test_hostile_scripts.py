"""Scripts of all kinds, made from cases in which every text is hostile: their statements stay what they are."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilebisect.core import quoting
from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault, Frame, Kind, Stage
from compilebisect.core.repro_case import (
    Call,
    Definition,
    Fill,
    Graph,
    GraphInput,
    Items,
    Literal,
    Mapping,
    Operator,
    Program,
    Ref,
    ReproCase,
    Statement,
    TensorValue,
    UserFile,
)
from compilebisect.repro.check_part import model_lines
from compilebisect.repro.script import UnwritableCase, line_count, place_code, saved_keys, script_text
from compilebisect.repro.wording import is_our_script
from tests.hostile_texts import CODE, TEXTS, hostile_text

KINDS = [kind for kind in Kind if kind is not Kind.SLOWDOWN]
WHERE = Path("/nowhere")
Texts = Callable[[], str]
DIVERGENCES = ("values", "nonfinite", "mutation", "aliasing", "structure", "stride", "shape")
RECOMPILE = {
    "recompiles": [{"function": "forward", "guard": "x == 1"}],
    "marks": ["x"],
    "between_instances": False,
    "cause": "value",
    "is_attribute": False,
    "in_variants": False,
    "count": 2,
}


def fault(kind: Kind, text: Texts, divergence: str) -> Fault:
    type_name = divergence if kind is Kind.DIVERGENCE else text()
    evidence: dict[str, Any] = {}
    if kind is Kind.RECOMPILE:
        evidence = {**RECOMPILE, "recompiles": [{"function": text(), "guard": text()}], "marks": [text(), text()]}
    frame = Frame(text(), 3, text(), text())
    return Fault(
        kind=kind,
        type=type_name,
        message=f"{text()}\n{text()} raised:\n{text()}",
        stage=Stage.DYNAMO,
        frames=(frame,),
        location=frame,
        evidence=evidence,
    )


def program(text: Texts) -> Program:
    saved = TensorValue(shape=(2, 3), fill=Fill.SAVED, key=text(), device="cpu")
    attributes = tuple((text() + str(number), Literal("1")) for number in range(2))
    return Program(
        statements=(
            Statement("model", Call("new_module", (Literal("Net"),))),
            Statement(quoting.attribute("model", text()), Literal(quoting.literal(text()))),
            Statement(quoting.attribute("model", text()), Call("new", (Literal("Net"),), attributes)),
            Statement("", Call("model.add_module", (Literal(quoting.literal(text())), Ref("model")))),
        ),
        arguments=(
            Statement("x", saved),
            Statement("y", Mapping(((Literal(quoting.literal(text())), Items("list", (Literal("1"),))),))),
        ),
        args=(Ref("x"),),
        kwargs=((text(), Ref("y")),),
    )


def graph(text: Texts) -> Graph:
    return Graph(
        inputs=(GraphInput(name="x", value=TensorValue(shape=(2,)), origin=text()),),
        operators=(
            Operator(name="y", kind="function", target="torch.relu", args=(Ref("x"),), module=text()),
            Operator(
                name="z",
                kind="function",
                target="torch.einsum",
                args=(Literal(quoting.literal(text())), Ref("y")),
                kwargs=((text(), Literal("1")),),
                module=text(),
            ),
        ),
        output=Ref("z"),
    )


def case(kind: Kind, text: Texts, *, of_graph: bool, divergence: str = "values", **fields: Any) -> ReproCase:
    made: dict[str, Any] = {"graph": graph(text)} if of_graph else {"program": program(text)}
    return ReproCase(
        fault=fault(kind, text, divergence),
        **made,
        definitions=(Definition(names=("Net",), text="class Net(torch.nn.Module):\n    pass"),),
        user_files=(UserFile(module="model", folder=f"/code/{text()}", file=text(), names=("Net",)),),
        module_path=text(),
        module_class=text(),
        device=f"cpu:{text()}",
        backend=f"x{text()}",
        mode=text() or "mode",
        context=CallContext("no_grad", ((text(), "torch.bfloat16"),)),
        config=(("torch._dynamo.config.x", quoting.literal(text())),),
        environment=((text(), text()), (text(), text())),
        notes=(text(), text()),
        tensor_file="x.safetensors",
        **fields,
    )


def harmless() -> str:
    return "plain"


def shape(node: ast.AST) -> list[Any]:
    """Return the statements below a node without the texts in them; setting an attribute counts as assigning to it."""
    found: list[Any] = []
    for child in ast.iter_child_nodes(node):
        inner = shape(child)
        if isinstance(child, ast.stmt):
            called = child.value.func if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call) else None
            is_set = isinstance(called, ast.Name) and called.id == "setattr"
            found.append((ast.Assign if is_set else type(child), inner))
        else:
            found += inner
    return found


def names(tree: ast.AST) -> set[str]:
    """Return all that a script names, but for what attributes of odd names are reached with."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"getattr", "setattr"}


def of_texts(drawn: Iterator[str]) -> Texts:
    return lambda: next(drawn)


def check(kind: Kind, text: Texts, **options: Any) -> None:
    made = script_text(case(kind, text, **options), script_dir=WHERE)
    made.encode("utf-8")
    compile(made, "script.py", "exec")
    plain = script_text(case(kind, harmless, **options), script_dir=WHERE)
    tree = ast.parse(made)
    assert shape(tree) == shape(ast.parse(plain))
    assert names(tree) == names(ast.parse(plain))
    assert is_our_script(made) and not is_our_script(made.replace("# torch.compile", "# torch"))
    assert line_count(made) > 20 and model_lines(made) > 0  # what reads a script back finds its lines


def cycle(texts: list[str], start: int) -> Iterator[str]:
    number = start
    while True:
        yield texts[number % len(texts)]
        number += 1


@pytest.mark.parametrize("of_graph", [True, False], ids=["graph", "program"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
@given(st.lists(hostile_text(), min_size=1, max_size=9))
def test_texts_of_the_model_change_no_statement(kind: Kind, of_graph: bool, texts: list[str]) -> None:
    check(kind, of_texts(cycle(texts, 0)), of_graph=of_graph)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_each_known_text_in_each_place_of_each_kind(text: str) -> None:
    for kind in KINDS:
        for of_graph in (True, False):
            check(kind, lambda: text, of_graph=of_graph, train=True)
    for divergence in DIVERGENCES:
        check(Kind.DIVERGENCE, lambda: text, of_graph=False, divergence=divergence)
    check(Kind.GRAPH_BREAK, lambda: text, of_graph=False, in_place=("a.b", f"a.b:{text}"))


def test_keys_of_saved_tensors_are_read_back_from_a_script() -> None:
    for text in TEXTS:
        made = script_text(case(Kind.ERROR, lambda text=text: text, of_graph=False), script_dir=WHERE)
        assert saved_keys(made) == (text,)


def test_a_folder_of_any_name_is_the_one_that_is_looked_in() -> None:
    made = script_text(case(Kind.ERROR, lambda: "\U0001f600'\"", of_graph=False), script_dir=WHERE)
    texts = {node.value for node in ast.walk(ast.parse(made)) if isinstance(node, ast.Constant)}
    assert any(isinstance(text, str) and text.endswith("\U0001f600'\"") for text in texts)


def test_a_file_whose_name_is_none_in_python_is_imported_all_the_same(tmp_path: Path) -> None:
    plain = case(Kind.ERROR, harmless, of_graph=False)
    for stem in ("my-model", "2d", "class", "a b", "\ufb01", "it's"):
        (tmp_path / f"{stem}.py").write_text(f"class Net: stem = {stem!r}\n", encoding="utf-8")
        for names, wanted in ((("Net",), stem), ((), None)):
            file = UserFile(module=stem, folder=str(tmp_path), file=f"{stem}.py", names=names)
            made = script_text(msgspec.structs.replace(plain, user_files=(file,)), script_dir=tmp_path)
            start = made.index("# The user's own files")
            lines = made[start : made.index("\n\n", start)]
            found: dict[str, Any] = {"__file__": str(tmp_path / "repro_F1.py")}
            exec(f"import os, sys\n{lines}", found)
            assert getattr(found.get("Net"), "stem", None) == wanted
            sys.modules.pop(stem, None)
            sys.path[:] = [entry for entry in sys.path if entry and not entry.startswith(str(tmp_path))]


def test_empty_lines_within_a_text_stay() -> None:
    text = 'class Net:\n    a = """\n\n\n\n\n\n"""\n\n\n\n\n\n    b = 1'
    plain = case(Kind.ERROR, harmless, of_graph=False)
    made = script_text(
        msgspec.structs.replace(plain, definitions=(Definition(names=("Net",), text=text),)), script_dir=WHERE
    )
    assert 'a = """\n\n\n\n\n\n"""\n\n\n    b = 1' in made


def test_the_line_of_the_fault_is_found_behind_a_form_feed() -> None:
    made = case(Kind.GRAPH_BREAK, harmless, of_graph=False)
    definition = Definition(names=("Net",), text='class Net(torch.nn.Module):\n    a = "\f\u2028"; plain = 1')
    assert place_code(msgspec.structs.replace(made, definitions=(definition,))) == "plain"


# What has to be a name or an expression in Python; a case in which it is none is not written.
STRUCTURAL: dict[str, Callable[[str], dict[str, Any]]] = {
    "import": lambda text: {"imports": (text,)},
    "file": lambda text: {"user_files": (UserFile(module=text, folder=".", file="x.py", names=("Net",)),)},
    "name of a file": lambda text: {"user_files": (UserFile(module="x", folder=".", file="x.py", names=(text,)),)},
    "config": lambda text: {"config": ((text, "1"),)},
    "value of a config": lambda text: {"config": (("torch._dynamo.config.x", text),)},
    "literal": lambda text: {"program": Program(statements=(Statement("model", Literal(text)),))},
    "reference": lambda text: {"program": Program(statements=(Statement("model", Ref(text)),))},
    "function": lambda text: {"program": Program(statements=(Statement("model", Call(text)),))},
    "target": lambda text: {"program": Program(statements=(Statement(text, Literal("1")),))},
    "dtype": lambda text: {"program": Program(statements=(Statement("model", TensorValue(shape=(), dtype=text)),))},
    "autocast": lambda text: {"context": CallContext("grad", (("cpu", text),))},
    "method": lambda text: {"program": Program(statements=(), method=text)},
}


@pytest.mark.parametrize("place", STRUCTURAL)
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_is_no_python_makes_no_script_instead_of_another_one(place: str, text: str) -> None:
    plain = case(Kind.GRAPH_BREAK, harmless, of_graph=False)
    for hostile in (text, f"x{text}", f"x = 1\n{CODE}"):
        try:
            made = script_text(msgspec.structs.replace(plain, **STRUCTURAL[place](hostile)), script_dir=WHERE)
        except UnwritableCase as error:
            assert "\n" not in str(error)
            continue
        assert "EVIL" not in names(ast.parse(made))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_graph_whose_names_are_no_python_makes_no_script(text: str) -> None:
    plain = case(Kind.GRAPH_BREAK, harmless, of_graph=True)
    x = GraphInput(name="x", value=TensorValue(shape=()))
    operator = Operator(name="y", kind="function", target="torch.relu", args=(Ref("x"),))
    for graph in (
        Graph(inputs=(GraphInput(name=text, value=Literal("1")),), operators=(operator,), output=Ref("y")),
        Graph(inputs=(x,), operators=(msgspec.structs.replace(operator, name=text),), output=Ref("y")),
        Graph(inputs=(x,), operators=(msgspec.structs.replace(operator, target=text),), output=Ref("y")),
        Graph(inputs=(x,), operators=(msgspec.structs.replace(operator, kind="method", target=text),), output=Ref("y")),
        Graph(inputs=(x,), operators=(operator,), output=Ref("y"), constants=((text, TensorValue(shape=())),)),
        Graph(inputs=(x,), operators=(operator,), output=Ref("y"), children=((text, Graph(
            inputs=(x,), operators=(operator,), output=Ref("y"))),)),
    ):  # fmt: skip
        try:
            made = script_text(msgspec.structs.replace(plain, graph=graph), script_dir=WHERE)
        except UnwritableCase:
            continue
        assert "EVIL" not in names(ast.parse(made))
