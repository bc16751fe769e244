"""Operators of the user's that are registered after the compiler was imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from compilebisect.runtime.torch_internals import NewOperators, import_compiler

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("late_ops", "DEF") as library:
        yield library


@pytest.mark.slow
def test_an_operator_is_decomposed_as_if_the_compiler_came_after_it(library: torch.library.Library) -> None:
    import_compiler()
    operators = NewOperators()
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: x * 3, "CompositeImplicitAutograd")
    operators.take_in()
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(lambda x: torch.ops.late_ops.twice(x))(torch.ones(3))
    assert compiled.tolist() == [3, 3, 3]


def test_the_table_is_made_anew_only_when_operators_have_come(
    library: torch.library.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_compiler()
    made = 0
    make = torch._decomp.core_aten_decompositions

    def counting() -> object:
        nonlocal made
        made += 1
        return make()

    monkeypatch.setattr(torch._decomp, "core_aten_decompositions", counting)
    operators = NewOperators()
    operators.take_in()
    assert made == 0
    library.define("once(Tensor x) -> Tensor")
    operators.take_in()
    operators.take_in()
    assert made == 1
    library.define("another(Tensor x) -> Tensor")
    operators.take_in()
    assert made == 2
