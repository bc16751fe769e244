from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.units import units_of
from compilebisect.runtime.describe import module_records, watch_methods
from compilebisect.runtime.golden import CallLog, watch_calls
from tests.runtime.test_golden import log_calls


def tree_of(model, *args):
    log = log_calls(model, *args)
    return ModuleTree(module_records(model, log.calls, log.dropped))


def unit_paths(model, *args):
    return [unit.paths for unit in units_of(tree_of(model, *args))]


class Layer(nn.Module):
    def __init__(self, number, width=4):
        super().__init__()
        self.number = number
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.fc(x))


class Stack(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_number_that_only_says_where_a_layer_stands_makes_no_unit_of_its_own():
    assert ("layers.0", "layers.1", "layers.2") in unit_paths(Stack(*map(Layer, range(3))), torch.ones(2, 4))


def test_classes_made_by_a_function_are_told_apart():
    def make(factor):
        class Scale(nn.Module):
            def forward(self, x):
                return x * factor

        return Scale()

    assert ("layers.0",) in unit_paths(Stack(make(1), make(2)), torch.ones(2, 4))


def test_another_number_does():
    assert ("layers.1",) in unit_paths(Stack(Layer(0), Layer(7)), torch.ones(2, 4))


def test_a_hook_makes_a_unit_of_its_own():
    model = Stack(Layer(0), Layer(1))
    model.layers[1].register_forward_hook(lambda module, args, output: output + 1)
    assert ("layers.1",) in unit_paths(model, torch.ones(2, 4))


def test_another_parameter_dtype_makes_a_unit_of_its_own():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    assert unit_paths(model, torch.ones(2, 4)) == [("0",), ("1",), ("",)]


def test_shared_modules_are_named_once_with_their_other_places():
    shared = nn.Linear(4, 4)
    tree = tree_of(nn.Sequential(nn.Sequential(shared), nn.Sequential(shared)), torch.ones(2, 4))
    assert list(tree) == ["", "0", "0.0", "1"]
    assert tree["0.0"].aliases == ("1.0",)
    assert tree["1"].children == ("0.0",)
    assert tree["0.0"].call_count == 2


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    @decorated
    def forward(self, x):
        return x + 1


def test_the_definition_of_a_decorated_forward_is_the_users_line():
    record = tree_of(Decorated(), torch.ones(2))[""]
    assert record.definition.code == "def forward(self, x):"
    assert {span.name for span in record.methods if span.is_entry} == {"forward"}
    assert len([span for span in record.methods if span.is_entry]) == 2


def test_torchs_own_modules_have_no_definition():
    assert tree_of(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4))["0"].definition is None


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def encode(self, x):
        return self.fc(x)


class UsesAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.coder = Coder()

    def forward(self, x):
        return self.coder.encode(x)


def test_methods_that_stand_in_for_a_call_are_noted():
    model = UsesAMethod()
    with watch_methods(model) as methods:
        model(torch.ones(2, 4))
    assert methods == {"coder": {"encode"}}


class Applies(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_functions_made_in_functions_make_units_of_their_own():
    model = Stack(Applies(lambda x: x + 1), Applies(lambda x: x * 2))
    assert ("layers.0",) in unit_paths(model, torch.ones(2))


def test_named_functions_are_equal():
    assert ("layers.0", "layers.1") in unit_paths(Stack(Applies(torch.relu), Applies(torch.relu)), torch.ones(2))


def test_odd_attributes_do_not_end_the_run():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.loop = []
            self.loop.append(self.loop)
            self.huge = 10**5000

        def extra_repr(self):
            raise ValueError("no words")

        def forward(self, x):
            return x

    assert unit_paths(Odd(), torch.ones(2)) == [("",)]


@pytest.mark.filterwarnings("ignore:`torch.jit")  # the category changed with torch 2.15
def test_a_scripted_child_is_described_and_not_traced():
    tree = tree_of(nn.Sequential(torch.jit.script(nn.Linear(4, 4))), torch.ones(2, 4))
    assert not tree["0"].is_traceable


def test_a_child_that_the_parent_switches_over_is_a_unit_of_its_own():
    class Switched(nn.Module):
        def __init__(self):
            super().__init__()
            self.mode = "plain"

        def forward(self, x):
            return x if self.mode == "plain" else x * 2

    class Switches(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Switched(), Switched()

        def forward(self, x):
            self.two.mode = "double"
            return self.two(self.one(x))

    model = Switches()
    log = CallLog(model)
    with watch_calls(model, log.note):
        model(torch.ones(2))
    model.two.mode = "plain"
    units = units_of(ModuleTree(module_records(model, log.calls, log.dropped)))
    assert [unit.paths for unit in units] == [("one",), ("two",), ("",)]
