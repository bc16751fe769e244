import collections
import threading
import weakref
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from compilebisect.runtime.state import REMOVED, StateSnapshot
from compilebisect.runtime.values import clone_value


class Slotted:
    __slots__ = ("__weakref__", "count", "later")

    def __init__(self):
        self.count = 0


@dataclass
class Cache:
    keys: list[torch.Tensor] = field(default_factory=list)
    length: int = 0


class Refusing:
    def __init__(self):
        self.number = 1

    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


class Stateful(nn.Module):
    def __init__(self, shared=None):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("total", torch.zeros(2))
        self.step = 0
        self.seen = [torch.zeros(2)]
        self.table = {"a": 1, "b": torch.zeros(2)}
        self.names = {"x"}
        self.recent = collections.deque([1, 2], maxlen=2)
        self.cache = Cache()
        self.slotted = Slotted()
        self.refusing = Refusing()
        self.lock = threading.Lock()
        self.back = weakref.ref(self.slotted)
        self.array = np.zeros(2)
        self.generator = torch.Generator().manual_seed(1)
        self.loop = [self.table]
        self.loop.append(self.loop)
        self.shared = shared

    def forward(self, x):
        self.total += x
        self.step += 1
        self.seen[0].add_(1)
        self.seen.append(x * 2)
        self.table["b"] = self.table["b"] + 1
        self.table["c"] = 3
        self.table.pop("a", None)
        self.names.add("y")
        self.recent.append(3)
        self.cache.keys.append(x)
        self.cache.length += 1
        self.slotted.count += 1
        self.slotted.later = x
        self.refusing.number = 2
        self.array += 1
        torch.rand(3, generator=self.generator)
        self.made_lazily = x
        if self.shared is not None:
            self.shared["hits"] = self.shared.get("hits", 0) + 1
        return self.linear(x)


def test_everything_that_a_run_changes_is_put_back_in_place():
    shared = {}
    module = Stateful(shared)
    containers = (module.seen, module.table, module.names, module.recent, module.cache, module.total, module.seen[0])
    order = list(module.__dict__)
    snapshot = StateSnapshot(module)
    for _ in range(2):
        module(torch.ones(2))
    snapshot.restore()
    present = (module.seen, module.table, module.names, module.recent, module.cache, module.total, module.seen[0])
    assert all(now is before for now, before in zip(present, containers, strict=True))
    assert module.total.tolist() == [0, 0]
    assert module.step == 0
    assert [tensor.tolist() for tensor in module.seen] == [[0, 0]]
    assert list(module.table) == ["a", "b"]
    assert module.table["b"].tolist() == [0, 0]
    assert module.names == {"x"}
    assert list(module.recent) == [1, 2]
    assert module.cache == Cache()
    assert module.slotted.count == 0
    assert not hasattr(module.slotted, "later")
    assert module.refusing.number == 1
    assert module.array.tolist() == [0, 0]
    assert not hasattr(module, "made_lazily")
    assert shared == {}
    assert list(module.__dict__) == order
    expected = torch.rand(2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.rand(2, generator=module.generator), expected)
    assert snapshot.unrestorable == []


def test_changes_name_each_entry_and_its_present_value():
    module = Stateful({})
    snapshot = StateSnapshot(module)
    assert snapshot.changes() == {}
    module(torch.ones(2))
    changes = snapshot.changes()
    assert changes["total"].tolist() == [1, 1]
    assert changes["step"] == 1
    assert changes["seen[0]"].tolist() == [1, 1]
    assert changes["seen[1]"].tolist() == [2, 2]
    assert changes["table['a']"] is REMOVED
    assert changes["table['b']"].tolist() == [1, 1]
    assert changes["table['c']"] == 3
    assert changes["names"] == "{'x', 'y'}"
    assert changes["cache.keys[0]"].tolist() == [1, 1]
    assert changes["cache.length"] == 1
    assert changes["slotted.count"] == 1
    assert changes["slotted.later"].tolist() == [1, 1]
    assert changes["refusing.number"] == 2
    assert changes["made_lazily"].tolist() == [1, 1]
    assert changes["shared['hits']"] == 1
    assert not any(path.startswith("linear") for path in changes)
    snapshot.restore()
    assert changes["total"].tolist() == [1, 1], "what was reported must not change with the module"
    assert snapshot.changes() == {}


def test_submodules_and_their_flags_are_watched():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    snapshot = StateSnapshot(module)
    module(torch.randn(8, 2))
    module.eval()
    changes = snapshot.changes()
    assert {"0.running_mean", "0.running_var", "0.num_batches_tracked", "0.training", "1.training"} <= set(changes)
    snapshot.restore()
    assert module[0].training
    assert module[0].num_batches_tracked.item() == 0


def test_a_write_that_leaves_the_values_as_they_were_is_no_change():
    module = Stateful()
    snapshot = StateSnapshot(module)
    module.total.mul_(1)
    module.table["b"] = module.table["b"].clone()
    assert snapshot.changes() == {}


def test_large_parameters_are_watched_by_version_and_restored_only_if_cloned():
    module = nn.Linear(256, 256)
    before = module.weight.detach().clone()
    snapshot, cloning = StateSnapshot(module), StateSnapshot(module, clone_parameters=True)
    with torch.no_grad():
        module.weight.add_(1)
    assert "weight" in snapshot.changes()
    snapshot.restore()
    assert snapshot.unrestorable == ["weight"]
    cloning.restore()
    assert torch.equal(module.weight, before)


def test_swapped_data_and_resized_buffers_are_put_back():
    module = Stateful()
    weight = module.linear.weight
    before = weight.detach().clone()
    snapshot = StateSnapshot(module)
    weight.data = weight.data.double() + 1
    module.total.resize_(5)
    assert {"linear.weight", "total"} <= set(snapshot.changes())
    snapshot.restore()
    assert module.linear.weight is weight
    assert torch.equal(weight, before)
    assert module.total.tolist() == [0, 0]


def test_a_buffer_that_got_a_history_is_cut_from_it():
    module = Stateful()
    snapshot = StateSnapshot(module)
    module.total += module.linear.weight.sum()
    assert module.total.grad_fn is not None
    snapshot.restore()
    assert module.total.grad_fn is None
    assert not module.total.requires_grad
    assert module.total.tolist() == [0, 0]


def test_gradients_and_requires_grad_are_put_back():
    module = Stateful()
    module.linear.weight.grad = torch.ones(2, 2)
    snapshot = StateSnapshot(module)
    module(torch.ones(2)).sum().backward()
    module.linear.bias.requires_grad_(False)
    snapshot.restore()
    assert module.linear.weight.grad.tolist() == [[1, 1], [1, 1]]
    assert module.linear.bias.grad is None
    assert module.linear.bias.requires_grad


def test_unusual_tensors_survive():
    module = nn.Module()
    module.history = torch.ones(2, requires_grad=True) * 2
    module.meta = torch.empty(2, device="meta")
    module.nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    module.sparse = torch.eye(2).to_sparse()
    module.lazy = nn.LazyLinear(2)
    module.expanded = torch.ones(1, 2).expand(3, 2)
    with torch.inference_mode():
        module.inference = torch.ones(2)
    snapshot = StateSnapshot(module)
    with torch.inference_mode():
        module.inference.add_(1)
    with torch.no_grad():
        module.history.add_(1)
        module.expanded[:, 0:1].narrow(0, 0, 1).add_(1)
    assert set(snapshot.changes()) == {"inference", "history", "expanded"}
    snapshot.restore()
    assert module.inference.tolist() == [1, 1]
    assert module.history.tolist() == [2, 2]
    assert module.expanded.tolist() == [[1, 1]] * 3


def test_fake_tensors_survive():
    from torch._subclasses.fake_tensor import FakeTensorMode

    module = nn.Module()
    with FakeTensorMode():
        module.fake = torch.ones(2)
        snapshot = StateSnapshot(module)
        module.fake.add_(1)
        assert "fake" in snapshot.changes()
        snapshot.restore()
        clone_value(module.fake)


def test_extra_roots_are_watched_as_well():
    module, outside = nn.Linear(1, 1), {"calls": 0}
    snapshot = StateSnapshot(module, [("outside", outside)])
    outside["calls"] += 1
    assert snapshot.changes() == {"outside['calls']": 1}
    snapshot.restore()
    assert outside == {"calls": 0}


def test_modules_held_in_plain_attributes_are_not_entered():
    parent = Stateful()
    module = nn.Linear(1, 1)
    module.parents = [parent]
    snapshot = StateSnapshot(module)
    parent.step = 5
    assert snapshot.changes() == {}


def test_an_ordered_dict_is_still_in_order_after_an_entry_was_taken_out_again():
    module = nn.Linear(2, 2)
    snapshot = StateSnapshot(module)
    module.register_forward_hook(lambda *call: None)
    module.notes = collections.OrderedDict(a=1)
    snapshot.restore()
    assert list(module._forward_hooks.values()) == []
    kept = nn.Linear(2, 2)
    kept.notes = collections.OrderedDict(a=1, b=2)
    snapshot = StateSnapshot(kept)
    kept.notes["c"] = 3
    kept.notes.move_to_end("a")
    snapshot.restore()
    assert list(kept.notes.items()) == [("a", 1), ("b", 2)]


def test_hooks_that_a_run_installs_are_put_back_and_are_no_result():
    module = nn.Sequential(nn.Linear(2, 2))
    snapshot = StateSnapshot(module)
    module[0].register_forward_hook(lambda *call: None)
    assert snapshot.changes() == {}
    snapshot.restore()
    assert not module[0]._forward_hooks
