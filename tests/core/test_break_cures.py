from __future__ import annotations

import pytest

from compilebisect.core.break_cures import CureCheck, Decorator, checked_hint, cure_of
from compilebisect.core.outcome import Fault, Frame, Kind

# As torch 2.11 to 2.15 write them: hints name other functions than the one that was called.
BUILTIN = """Failed to trace builtin operator
  Hint: If you are attempting to call a logging function (e.g. `print`), you can try adding it to ...
  Developer debug context: builtin {} [<class 'torch._dynamo.variables.constant.ConstantVariable'>] False"""
SKIPPED = """Attempted to call function marked as skipped
  Explanation: This function is either a Python builtin (e.g. _warnings.warn) or a third-party C/C++ extension.
  Developer debug context: module: {}, qualname: {}, skip reason: <missing reason>"""


def fault(kind: str, code: str = "x", message: str = "", hint: str = "what torch says") -> Fault:
    frame = Frame("model.py", 3, "forward", code)
    return Fault(kind=Kind.GRAPH_BREAK, type=kind, message=message, hint=hint, frames=(frame,), location=frame)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (fault("Failed to trace builtin operator", "print(x)", BUILTIN.format("print")), "is_compiling"),
        (fault("Failed to trace builtin operator", "eval('x')", BUILTIN.format("eval")), "custom operator"),
        (fault("logging.Logger method not supported for non-export cases", "log.info(1)"), "Move logging"),
        (fault("Data-dependent branching", "if x.sum() > 0:"), "torch.where"),
        (fault("Data-dependent branching", 'assert x.sum() > 0, f"{x}"'), "constant message"),
        (fault("Unsupported Tensor.item() call with capture_scalar_outputs=False", "x.item()"), "0-d tensor"),
        (fault("Dynamic shape operator", "x.nonzero()"), "nonzero_static"),
        (fault("Dynamic shape operator (no meta kernel)", "op(x)"), "register_fake"),
        (
            fault("Attempted to call function marked as skipped", "warn()", SKIPPED.format("_warnings", "warn")),
            "Warn once",
        ),
        (fault("Attempted to call function marked as skipped", "now()", SKIPPED.format("time", "time")), "Take times"),
        (
            fault("Attempted to call function marked as skipped", "r()", SKIPPED.format("?", "Random.random")),
            "torch.rand",
        ),
        (fault("Attempted to call function marked as skipped", "lib.f(x)", SKIPPED.format("lib", "f")), "custom_op"),
        (fault("Call to `torch.compiler.disable()`", "f(x)"), "torch.compiler.disable"),
    ],
)
def test_well_known_types_have_a_remedy_of_our_own(broken: Fault, words: str) -> None:
    assert words in cure_of(broken).hint


def test_a_module_without_any_graph_is_not_said_to_have_some() -> None:
    text = checked_hint("Do so.", [CureCheck("config.a = True", True, 0)], has_others=False)
    assert text == "Do so. With `config.a = True` this break is gone (tried)."


def test_an_unknown_type_keeps_what_torch_says() -> None:
    cure = cure_of(fault("Something new in torch 3"))
    assert (cure.hint, cure.switches, cure.decorators) == ("what torch says", (), ())


def test_a_decorator_is_said_as_code() -> None:
    (decorator,) = cure_of(fault("Skip calling `torch.compiler.disable()`d function")).decorators
    assert decorator.text("helper") == "helper without torch.compiler.disable"
    assert Decorator("torch.compiler.allow_in_graph").text("helper") == "torch.compiler.allow_in_graph(helper)"


def test_the_switch_for_logging_names_the_method_that_the_line_calls() -> None:
    (switches,) = cure_of(fault("logging.Logger method not supported", "self.log.debug(1)")).switches
    assert [switch.text for switch in switches] == [
        "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.debug)"
    ]


def test_a_hint_says_what_was_seen_and_no_more() -> None:
    fails, helps = CureCheck("config.a = True", False, 2), CureCheck("config.b = True", True, 1)
    assert checked_hint("Do so.", [], has_others=False) == "Do so."
    assert checked_hint("Do so.", [fails], has_others=False) == "Do so. `config.a = True` does not help here (tried)."
    assert checked_hint("Do so.", [fails, helps], has_others=True) == (
        "Do so. With `config.b = True` this module has 1 graph, with its other breaks mended (tried)."
    )
