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
