"""What is needed to write a repro script, as plain data that travels between processes and that a reducer can shrink.

A case holds values as small trees (`Value`), a program as a flat list of statements or operators, and the fault that
the script must show. Nothing here knows how the text of a script looks.
"""

from __future__ import annotations

from enum import Enum
from typing import Union

import msgspec

from compilebisect.core.call import CallContext
from compilebisect.core.outcome import Fault, Kind


class Fill(str, Enum):
    """Where the numbers of a tensor come from."""

    RANDN = "randn"
    RAND = "rand"
    RANDINT = "randint"
    BOOL = "bool"
    FULL = "full"
    ARANGE = "arange"
    VALUES = "values"
    EMPTY = "empty"
    SAVED = "saved"


class Literal(msgspec.Struct, frozen=True, tag="literal"):
    """A Python expression that is complete in itself, such as `0.5`, `torch.bfloat16` or a function's name."""

    text: str


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """Something that the program made before: a variable, a graph's node, or a path such as `model.config`."""

    name: str


class TensorValue(msgspec.Struct, frozen=True, kw_only=True, tag="tensor"):
    """A tensor, described.

    `stride` None means contiguous. `storage` is the number of elements below a tensor whose elements do not fill a
    permuted contiguous block; `offset` is where it starts there. `device` "" is the device that the script was asked
    for. `low` and `high` mean: shift and scale of normal numbers, the bounds of uniform and integer ones (`high`
    excluded), the value of a constant (`low`), start and step of a range. `values` are the few elements of a tensor
    that is written out, in order. `key` names a saved tensor in its file. `lazily` says what is only noted on the
    tensor and not done in its memory: `conj`, `neg`, or `zero` for one that has no memory.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    stride: tuple[int, ...] | None = None
    storage: int | None = None
    offset: int = 0
    device: str = ""
    requires_grad: bool = False
    is_parameter: bool = False
    fill: Fill = Fill.RANDN
    low: float | int = 0
    high: float | int = 1
    values: tuple[int, ...] = ()
    key: str = ""
    lazily: str = ""


class ViewValue(msgspec.Struct, frozen=True, tag="view"):
    """A tensor that shares the storage of one made before, whose expression is `base`; `offset` is counted from it."""

    base: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Items(msgspec.Struct, frozen=True, tag="items"):
    """A list, tuple, set or frozenset (`kind`)."""

    kind: str
    items: tuple[Value, ...] = ()


class Mapping(msgspec.Struct, frozen=True, tag="mapping"):
    """A dict."""

    items: tuple[tuple[Value, Value], ...] = ()


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A call of `function`, a Python expression, with values."""

    function: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()


Value = Union[Literal, Ref, TensorValue, ViewValue, Items, Mapping, Call]  # noqa: UP007 - forward names, Python 3.10


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a graph. `kind` is `function`, `method` (of the first argument) or `attribute` (of the module).

    `module` is the path of the module that it came from, and `output` its result's description where it is a tensor.
    """

    name: str
    kind: str
    target: str
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()
    module: str = ""
    output: TensorValue | None = None


class GraphInput(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a graph. `origin` is the attribute of the user's model that it was, where it was one."""

    name: str
    value: Value
    origin: str = ""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A captured graph. `children` are the bodies that higher-order operators call, by attribute name.

    `memory` makes what inputs are views of.
    """

    inputs: tuple[GraphInput, ...]
    operators: tuple[Operator, ...]
    output: Value
    constants: tuple[tuple[str, TensorValue], ...] = ()
    children: tuple[tuple[str, Graph], ...] = ()
    memory: tuple[Statement, ...] = ()


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """Top-level statements of the user's source, word for word, that bind `names` and read `needs`."""

    names: tuple[str, ...]
    text: str
    needs: tuple[str, ...] = ()
    file: str = ""
    line: int = 0


class Statement(msgspec.Struct, frozen=True):
    """`target = value`, or `value` alone where there is no target."""

    target: str
    value: Value


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """How to build a module instance (the variable `model`) and, after it, the arguments of its call.

    `further_calls` are the arguments of calls that come after that one.
    """

    statements: tuple[Statement, ...]
    arguments: tuple[Statement, ...] = ()
    args: tuple[Value, ...] = ()
    kwargs: tuple[tuple[str, Value], ...] = ()
    further_calls: tuple[tuple[tuple[Value, ...], tuple[tuple[str, Value], ...]], ...] = ()
    method: str = "forward"


class UserFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the user that the script imports: `module` is its import name, `folder` where that is found.

    `file` is the file's path below that folder. `names` are the names that the script takes from it.
    """

    module: str
    folder: str
    file: str
    names: tuple[str, ...] = ()


class ReproCase(msgspec.Struct, frozen=True, kw_only=True):
    """One way to show one fault.

    Either `graph` or `program` is set. `imports` are import statements that the values and definitions may need;
    the script takes those that it uses. `tensor_file` is where the tensors with `Fill.SAVED` lie, in safetensors'
    format. `state_saved` says that it also holds the model's state, as keys `state.<name>`.
    `in_place` names what alone is compiled, by the ways that lead into it: `encoder.block` for a module that is called,
    `encoder.block:project` for another method of it. With `steps` the program makes an optimizer that steps so often.
    `train` says that the backward pass runs too; `cotangents` numbers the outputs from which it starts with a saved
    cotangent (`cotangent.<number>` in the file), all outputs with random ones where it is empty. `tolerance` is (rtol,
    atol), None the default of the dtype. `row` is how often the call is made, of which the last one shows the fault.
    """

    fault: Fault
    graph: Graph | None = None
    program: Program | None = None
    definitions: tuple[Definition, ...] = ()
    imports: tuple[str, ...] = ()
    user_files: tuple[UserFile, ...] = ()
    module_path: str = ""
    module_class: str = ""
    device: str = "cpu"
    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    config: tuple[tuple[str, str], ...] = ()
    context: CallContext = CallContext(grad_mode="no_grad")
    train: bool = False
    cotangents: tuple[int, ...] = ()
    seed: int = 0
    tolerance: tuple[float, float] | None = None
    in_place: tuple[str, ...] = ()
    steps: int = 0
    row: int = 1
    deadline_s: float = 60.0
    tensor_file: str = ""
    state_saved: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_calls(self) -> bool:
        """Whether the script makes several calls of what it compiles, and looks at the last."""
        further = self.program.further_calls if self.program else ()
        return self.fault.kind in (Kind.DIVERGENCE, Kind.ERROR) and (self.row > 1 or bool(further))

    @property
    def imports_user_code(self) -> bool:
        """Whether the script needs the user's own files."""
        return bool(self.user_files)

    @property
    def operator_count(self) -> int:
        """Number of operators of the graph and its bodies; 0 for a program."""
        return _operator_count(self.graph) if self.graph else 0


def _operator_count(graph: Graph) -> int:
    return len(graph.operators) + sum(_operator_count(child) for _, child in graph.children)
