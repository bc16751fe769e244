"""Keys that are hashed by identity, and keys whose methods raise."""

import enum

import torch
from torch import nn

from compilebisect.core.call import CallContext
from compilebisect.runtime.golden import signature_of
from compilebisect.runtime.key_text import key_texts, safe_repr
from compilebisect.runtime.oracle import Oracle
from compilebisect.runtime.state import StateSnapshot
from compilebisect.runtime.values import clone_value, flatten


class Season:
    """Equals nothing but itself."""


class Rude:
    def __init__(self):
        self.is_rude = False

    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        if self.is_rude:
            raise RuntimeError("no")
        return self is other

    def __hash__(self):
        return 7


class Side(enum.Enum):
    LEFT = 1


class Till(nn.Module):
    def __init__(self):
        super().__init__()
        self.receipt = Season()
        self.open = {self.receipt: 0.5}

    def forward(self, x):
        y = x * self.open[self.receipt]
        self.open.pop(self.receipt)
        self.receipt = Season()
        self.open[self.receipt] = 0.5
        return y


def test_keys_without_a_value_of_their_own_go_by_class_and_order():
    keys = [Season(), 1, "a", Season(), (Season(), 2), Side.LEFT, len, Rude()]
    texts = key_texts(keys)
    assert texts[:5] == ["<Season>", "1", "'a'", "<Season> 2", "(<Season>, 2)"]
    assert texts[5:] == ["<Side.LEFT: 1>", "<len>", "<Rude>"]
    assert key_texts([Season(), 1, "a", Season(), (Season(), 2), Side.LEFT, len, Rude()]) == texts


def test_paths_and_signatures_of_calls_hold_no_address():
    one, other = ({Season(): torch.ones(1), Rude(): 2.0} for _ in range(2))
    assert [path for path, _ in flatten(one)] == ["[<Season>]", "[<Rude>]"]
    assert signature_of((one,), {}) == signature_of((other,), {})


def test_an_object_that_holds_nothing_stays_the_same_key_in_a_copy():
    season = Season()
    assert clone_value({season: torch.ones(1)})[season].tolist() == [1.0]


def test_a_new_key_object_in_each_call_is_no_difference():
    module = Till()
    snapshot = StateSnapshot(module)
    key = module.receipt
    module(torch.ones(1))
    assert [path for path in snapshot.changes() if path.startswith("open")] == []
    snapshot.restore()
    assert module.receipt is key and list(module.open) == [key]
    oracle = Oracle(module, (torch.ones(1),), {}, CallContext())
    assert oracle.check(module).is_equal


def test_a_changed_entry_below_a_new_key_is_still_told():
    class Counts(Till):
        def forward(self, x):
            super().forward(x)
            self.open[self.receipt] = 0.75
            return x

    module = Counts()
    snapshot = StateSnapshot(module)
    module(torch.ones(1))
    assert snapshot.changes()["open[<Season>]"] == 0.75


def test_keys_whose_methods_raise_end_nothing():
    key = Rude()
    module = nn.Identity()
    module.table = {key: torch.zeros(1)}
    snapshot = StateSnapshot(module)
    key.is_rude = True
    module.table[key].add_(1)
    assert list(snapshot.changes()) == ["table[<Rude>]"]
    snapshot.restore()
    assert module.table[key].tolist() == [0.0]
    assert safe_repr([key]) == "<list>"
