import collections
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from compilebisect.runtime.values import clone_value, flatten, map_tensors, tensors_in

Point = collections.namedtuple("Point", "x y")


@dataclass
class Output:
    logits: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    value: torch.Tensor


class ModelOutput(collections.OrderedDict):
    """In the manner of transformers: a dictionary whose entries are attributes too."""

    def __init__(self, **entries):
        super().__init__()
        for name, value in entries.items():
            self[name] = value

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.__dict__[name] = value


class Cache:
    def __init__(self):
        self.keys = [torch.ones(2)]
        self.seen = 3


class Slotted:
    __slots__ = ("empty", "value")

    def __init__(self):
        self.value = torch.ones(2)


class Refusing:
    def __init__(self):
        self.value = torch.ones(2)

    def __deepcopy__(self, memo):
        raise RuntimeError("not to be copied")


class NeedsArguments:
    def __new__(cls, size):
        return super().__new__(cls)

    def __init__(self, size):
        self.size = size


def paths(value):
    return [path for path, _ in flatten(value, "o")]


def test_paths_are_written_as_python_reaches_the_leaf():
    one = torch.ones(1)
    assert paths([one, (1, {"a b": one})]) == ["o[0]", "o[1][0]", "o[1][1]['a b']"]
    assert paths(Output(one, {"k": 1})) == ["o.logits", "o.extra['k']"]
    assert paths(ModelOutput(logits=one, hidden=(one, one))) == ["o.logits", "o.hidden[0]", "o.hidden[1]"]
    assert paths(Point(1, one)) == ["o.x", "o.y"]
    assert paths(Cache()) == ["o.keys[0]", "o.seen"]
    assert paths(Slotted()) == ["o.value"]


def test_packed_sequences_and_results_of_max_are_walked():
    packed = pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])
    assert paths(packed)[:2] == ["o.data", "o.batch_sizes"]
    assert len(tensors_in(torch.ones(2, 3).max(dim=1))) == 2


def test_sparse_and_nested_tensors_modules_and_functions_are_leaves():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    value = [torch.eye(2).to_sparse(), nested, nn.Linear(1, 1), len, threading.Lock(), None]
    assert paths(value) == [f"o[{index}]" for index in range(6)]


def test_a_cycle_ends():
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert paths(loop) == ["o[0]", "o[1]"]
    copy = clone_value(loop)
    assert copy[1] is copy
    assert copy[0] is not loop[0]


def test_a_copy_is_independent_in_every_kind_of_container():
    value = {
        "list": [torch.ones(2)],
        "tuple": (torch.ones(2),),
        "named": Point(torch.ones(2), 1),
        "dataclass": Output(torch.ones(2)),
        "frozen": Frozen(torch.ones(2)),
        "output": ModelOutput(logits=torch.ones(2)),
        "cache": Cache(),
        "slots": Slotted(),
        "deque": collections.deque([torch.ones(2)], maxlen=3),
        "default": collections.defaultdict(list, a=[torch.ones(2)]),
        "refusing": Refusing(),
        "packed": pack_sequence([torch.ones(2)]),
    }
    copy = clone_value(value)
    for (path, new), (_, old) in zip(tensors_in(copy), tensors_in(value), strict=True):
        if not path.endswith("batch_sizes"):
            new.fill_(7)
            assert bool((old == 1).all()), path
    assert {name: type(item) for name, item in copy.items()} == {name: type(item) for name, item in value.items()}
    assert copy["output"].logits is copy["output"]["logits"]
    assert copy["deque"].maxlen == 3
    assert copy["default"]["missing"] == []


def test_arrays_and_generators_are_copied_and_what_refuses_is_shared():
    array, generator, refusing = np.ones(2), torch.Generator().manual_seed(3), NeedsArguments(2)
    array_copy, generator_copy, shared = clone_value((array, generator, refusing))
    array_copy[0] = 5
    torch.rand(3, generator=generator_copy)
    assert array[0] == 1
    assert torch.equal(torch.rand(2, generator=generator), torch.rand(2, generator=torch.Generator().manual_seed(3)))
    assert shared is refusing


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(4, 6)[:, ::2],
        torch.arange(24.0).view(4, 6).t(),
        torch.ones(4, 1).expand(4, 6),
        torch.arange(24.0)[5:9],
        torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor(1.0),
        torch.ones(0, 3),
        torch.randn(3, dtype=torch.complex64).conj(),
    ],
    ids=["gaps", "transposed", "expanded", "offset", "channels_last", "scalar", "empty", "conjugate"],
)
def test_strides_and_offset_of_a_tensor_are_kept(tensor):
    copy = clone_value(tensor)
    assert torch.equal(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.storage_offset() == tensor.storage_offset()
    if tensor.numel():
        assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_views_of_one_storage_stay_views_of_one_storage():
    base = torch.zeros(6)
    other = torch.zeros(6)
    first, second, alone, again = clone_value([base[:3], base[1:4], other, base])
    again[2] = 9.0
    assert first[2] == 9.0
    assert second[1] == 9.0
    assert alone.sum() == 0
    assert base.sum() == 0


def test_the_same_tensor_twice_is_one_tensor_in_the_copy():
    tensor = torch.ones(2)
    first, second = clone_value((tensor, [tensor]))
    assert first is second[0]


def test_a_small_view_of_a_large_storage_does_not_copy_it_all_and_stays_as_aligned():
    large = torch.zeros(4 << 20, dtype=torch.uint8)
    view = large[1_000_003:1_000_103]
    copy = clone_value(view)
    assert copy.untyped_storage().nbytes() < 1000
    assert copy.data_ptr() % 64 == view.data_ptr() % 64


def test_tensors_with_a_history_become_leaves_that_require_grad():
    result = torch.ones(2, requires_grad=True) * 2
    copy = clone_value(result)
    assert copy.is_leaf
    assert copy.requires_grad
    assert copy.grad_fn is None


def test_parameters_and_inference_tensors_keep_their_nature():
    parameter = nn.Parameter(torch.ones(2), requires_grad=False)
    copy = clone_value(parameter)
    assert isinstance(copy, nn.Parameter)
    assert not copy.requires_grad
    with torch.inference_mode():
        tensor = torch.ones(2)
    assert clone_value(tensor).is_inference()
    with torch.inference_mode():
        assert not clone_value(parameter).is_inference()


def test_meta_sparse_nested_and_uninitialised_tensors_survive():
    lazy = nn.LazyLinear(3).weight
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    meta, sparse, copied_nested, same = clone_value(
        [torch.empty(3, 2, device="meta").t(), torch.eye(2).to_sparse(), nested, lazy]
    )
    assert meta.stride() == (1, 2)
    assert sparse.is_sparse
    assert copied_nested.is_nested
    assert same is lazy


def test_mapping_tensors_rebuilds_the_containers_once():
    tensor = torch.ones(2)
    cache = Cache()
    wide = map_tensors({"a": tensor, "b": (tensor, cache)}, lambda t: t.to(torch.float64))
    assert wide["a"].dtype is torch.float64
    assert wide["b"][0] is wide["a"]
    assert wide["b"][1].keys[0].dtype is torch.float64
    assert cache.keys[0].dtype is torch.float32


def test_a_base_and_its_view_are_that_in_the_copy_whichever_comes_first():
    base = torch.arange(24.0).reshape(4, 6) / 10
    whole, part = clone_value((base, base[1:]))
    assert part._base is whole and whole._base is None and whole.shape == (4, 6)
    part, whole = clone_value((base[1:], base))
    assert part._base is whole
    left, right = clone_value(tuple(base.chunk(2)))
    assert left._base is right._base and left._base.shape == (4, 6), "their base is no argument itself"


def test_a_base_that_requires_grad_still_does_when_its_view_comes_first():
    base = torch.ones(4, requires_grad=True)
    _, whole = clone_value((base.detach()[1:], base))
    assert whole.requires_grad


def test_lazy_zeros_and_the_bits_for_conjugates_and_signs_are_kept():
    turned = torch.randn(3, dtype=torch.complex64).conj()
    zero, copied, signed = clone_value((torch._efficientzerotensor((2, 3)), turned, turned.imag))
    assert zero._is_zerotensor() and zero.shape == (2, 3)
    assert copied.is_conj() and torch.equal(copied, turned)
    assert signed.is_neg() and torch.equal(signed, turned.imag)
    signed.zero_()
    assert copied.imag.abs().sum() == 0, "they share memory"
