"""Reasons for recompiles as torch 2.11, 2.13 and 2.15 gave them, word for word but for paths and remarks cut short."""

from __future__ import annotations

import pytest

from compilebisect.core.guard_text import Cause, parse_guard

INTEGER = (
    "(HINT: torch.compile considers integer attributes of the nn.Module to be static. If you are observing "
    "recompilation, you might want to make this integer dynamic using "
    "torch._dynamo.config.allow_unspec_int_on_nn_module = True, or convert this integer into a tensor.)"
)
KEY_SETS = "expected DispatchKeySet(CPU, BackendSelect), actual DispatchKeySet(SparseCPU, BackendSelect)"


@pytest.mark.parametrize(
    ("reason", "cause", "source", "dim", "expected", "actual"),
    [
        ("0/0: tensor 'x' size mismatch at index 1. expected 16, actual 32", Cause.SIZE, "x", 1, "16", "32"),
        ("0/1: tensor 'self.c' size mismatch at index 0. expected 2, actual 4", Cause.SIZE, "self.c", 0, "2", "4"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 4, actual 1", Cause.STRIDE, "x", 0, "4", "1"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 1", Cause.RANK, "x", None, "2", "1"),
        (
            "0/0: tensor 'xs[0]' dtype mismatch. expected Float, actual Double",
            Cause.DTYPE,
            "xs[0]",
            None,
            "Float",
            "Double",
        ),
        (
            "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0",
            Cause.REQUIRES_GRAD,
            "x",
            None,
            "False",
            "True",
        ),
        (
            f"0/1: tensor 'x' dispatch key set mismatch. {KEY_SETS}",
            Cause.LAYOUT,
            "x",
            None,
            "DispatchKeySet(CPU, BackendSelect)",
            "DispatchKeySet(SparseCPU, BackendSelect)",
        ),
        ("0/2: 2 <= x.size()[0]  # y = x + 1  # a/m.py:42 in forward", Cause.SIZE, "x", 0, "2 <= x.size()[0]", ""),
        ("0/1: (x.size()[0] % 4) == 0", Cause.SIZE, "x", 0, "(x.size()[0] % 4) == 0", ""),
        ("0/1: y.size()[0] == x.size()[0]  # (unknown var s17, please file a bug)", Cause.SIZE, "y", 0, None, ""),
        ("0/0: k == 3     # for i in range(k):  # a/m.py:48 in forward", Cause.VALUE, "k", None, "3", ""),
        ("0/0: self.f == 0.5   # return x * self.f  # a/m.py:26 in forward", Cause.VALUE, "self.f", None, "0.5", ""),
        (
            f"0/1: self.step == 1  # self.step += 1  # a/m.py:24 in forward {INTEGER}",
            Cause.VALUE,
            "self.step",
            None,
            "1",
            "",
        ),
        ("0/0: self.mode == 'a  # b'", Cause.OTHER, "", None, "", ""),
        (
            "0/0: self.b is None    # if self.b is None:  # a/m.py:37 in forward",
            Cause.VALUE,
            "self.b",
            None,
            "None",
            "",
        ),
        ("0/0: G['COUNT'] == 0   # COUNT += 1  # a/m.py:98 in forward", Cause.VALUE, "G['COUNT']", None, "0", ""),
        (
            "0/0: not self.past     # self.past.append(x)  # a/m.py:28 in forward",
            Cause.LENGTH,
            "self.past",
            None,
            "0",
            "",
        ),
        ("0/1: len(self.past) == 1", Cause.LENGTH, "self.past", None, "1", ""),
        ("0/0: len(self._modules['c'].d) != 0", Cause.LENGTH, "self._modules['c'].d", None, "0", ""),
        ("0/0: not ___dict_contains('b', d)   # if 'b' in d:  # a/m.py:5 in f", Cause.KEYS, "d", None, "no 'b'", ""),
        ("0/0: not set.__contains__(m, 'q')", Cause.KEYS, "m", None, "no 'q'", ""),
        ("0/0: set.__contains__(m, 'q')", Cause.KEYS, "m", None, "has 'q'", ""),
        (
            "0/0: list(dict.keys(d))[0] == 'a'  # for v in d.values():  # a/m.py:8 in f",
            Cause.KEYS,
            "d",
            None,
            "has 'a'",
            "",
        ),
        ("0/0: not hasattr(self, 'b')   # getattr(self, 'b', 0)", Cause.PRESENCE, "self.b", None, "missing", ""),
        ("0/1: ___check_type_id(m, 139733672219136), type=<class 'float'>  # x + m", Cause.TYPE, "m", None, "", ""),
        (
            "0/0: ___check_obj_id(cb.__code__, 139642628320480), type=<class 'code'>",
            Cause.IDENTITY,
            "cb.__code__",
            None,
            "",
            "",
        ),
        ("0/0: x is k     # return x * k  # a/m.py:44 in forward", Cause.ALIASING, "x and k", None, "", ""),
        ("0/1: GLOBAL_STATE changed: grad_mode ", Cause.GLOBAL_STATE, "grad_mode", None, "", ""),
        (
            "0/0: GLOBAL_STATE changed: autocast(cpu)_enabled ",
            Cause.GLOBAL_STATE,
            "autocast(cpu)_enabled",
            None,
            "",
            "",
        ),
        ("0/0: Cache line invalidated because L['x'] got deallocated", Cause.IDENTITY, "", None, "", ""),
        ("0/0: Unexpected recompilation: runtime guards failed even though they passed", Cause.OTHER, "", None, "", ""),
    ],
)
def test_each_form_is_read(reason, cause, source, dim, expected, actual):
    guard = parse_guard(reason)
    assert (guard.cause, guard.source, guard.dim, guard.actual) == (cause, source, dim, actual)
    assert expected is None or guard.expected == expected
    assert guard.compile_id == reason.split(": ")[0]


def test_the_users_line_and_the_stack_are_read():
    guard = parse_guard(
        "0/0: self._modules['c'].step == 0     # self.step += 1  # rc/m.py:24 in forward "
        f"{INTEGER}\nUser stack trace:\n"
        '  File "/home/u/rc/m.py", line 39, in forward\n    return self.c(x) + 1\n'
        '  File "/home/u/rc/m.py", line 24, in forward\n    self.step += 1\n'
    )
    assert (guard.code, guard.file, guard.line, guard.function) == ("self.step += 1", "rc/m.py", 24, "forward")
    assert guard.stack == (
        ("/home/u/rc/m.py", 39, "forward", "return self.c(x) + 1"),
        ("/home/u/rc/m.py", 24, "forward", "self.step += 1"),
    )
    assert guard.is_static_integer


@pytest.mark.parametrize(
    "reason",
    [
        "0/0: ___check_obj_id(cb.__code__, 139642628320480), type=<class 'code'>",
        '0/0: ___check_obj_id(f, 140312816364976), type=<code object <lambda> at 0x7f9d1f93adb0, file "/tmp/m.py">',
        "0/1: ___check_type_id(m, 139733672219136), type=<class 'float'>  # x + m  # a/m.py:1 in f (HINT: type float)",
    ],
)
def test_no_text_shows_the_id_or_address_of_an_object(reason):
    guard = parse_guard(reason)
    assert not any(character.isdigit() for character in guard.text)
    assert not any(character.isdigit() for mark in guard.marks for character in mark)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0/0: not self.past   # self.past.append(x)", "0/3: len(self.past) == 3   # self.past.append(x)"),
        ("0/0: self.step == 1  # self.step += 1", "0/4: self.step == 5  # self.step += 1"),
        (
            "0/0: tensor 'x' size mismatch at index 1. expected 16, actual 32",
            "0/1: x.size()[1] == 32  # a  # m.py:1 in f",
        ),
        (
            "0/0: tensor 'x' dtype mismatch. expected Float, actual Half",
            "0/1: tensor 'x' dtype mismatch. expected Half, actual Float",
        ),
    ],
)
def test_marks_stand_in_every_message_about_the_same_guard(one, other):
    for first, second in ((one, other), (other, one)):
        assert any(mark in second for mark in parse_guard(first).marks)


def test_the_mark_of_two_names_for_one_object_stands_in_its_message():
    (mark,) = parse_guard("0/0: list(d.keys(self.prices))[0] is self.season     # f()  # a/m.py:44 in forward").marks
    assert mark == "list(d.keys(self.prices))[0] is self.season"


def test_marks_tell_guards_on_other_dims_and_names_apart():
    marks = parse_guard("0/0: tensor 'x' size mismatch at index 1. expected 16, actual 32").marks
    assert not any(mark in "0/0: tensor 'x' size mismatch at index 10. expected 1, actual 2" for mark in marks)
    marks = parse_guard("0/0: not self.past   # f()").marks
    assert not any(mark in "0/0: not self.past_keys   # f()" for mark in marks)
