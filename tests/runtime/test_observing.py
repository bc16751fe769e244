from __future__ import annotations

import contextlib
import enum
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from compilebisect.core.module_tree import ModuleTree
from compilebisect.core.units import units_of
from compilebisect.runtime.cotangents import CotangentHooks, load_cotangents
from compilebisect.runtime.describe import module_records
from compilebisect.runtime.golden import CallLog, Capture, golden_file, load_golden, signature_of, watch_calls
from compilebisect.runtime.rerun import run_once
from compilebisect.runtime.state import StateSnapshot


class Raises:
    """Raises whatever it is asked."""

    def __getattribute__(self, name):
        raise KeyError(name)

    def __eq__(self, other):
        raise SystemExit("asked whether it is equal")

    def __hash__(self):
        return 7

    def __repr__(self):
        raise KeyboardInterrupt

    def __bool__(self):
        raise ValueError("neither")

    def __len__(self):
        raise ValueError("no length")

    def __reduce_ex__(self, protocol):
        raise SystemExit("not to be pickled")


class Loud(str):
    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = str.__hash__


class Mood(enum.Enum):
    GOOD = 1

    def __repr__(self):
        raise RuntimeError("no repr")


class Draws:
    """Draws random numbers, and warns, when it is pickled."""

    def __reduce__(self):
        torch.rand(3)
        np.random.rand()
        random.random()
        warnings.warn("about to be pickled", stacklevel=1)
        return Draws, ()


class Refusing(torch.Tensor):
    """A subclass of the user's that takes part in sums alone."""

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        if function.__name__ not in ("sum", "as_subclass"):
            raise LookupError(f"no {function.__name__} for this")
        return super().__torch_function__(function, kinds, args, kwargs or {})


class Takes(nn.Module):
    def forward(self, x, *others):
        return x * 2


class Root(nn.Module):
    """Hands its part whatever it is given."""

    def __init__(self, *others):
        super().__init__()
        self.part = Takes()
        self.after = Takes()
        self.others = others

    def forward(self, x):
        return self.after(self.part(x, *self.others) + torch.rand(x.shape))


def watched(model, folder, *args, wanted=("part", "after"), train=False):
    """Run a model unwatched and watched; gives both results, the log and what was captured."""
    hooks = CotangentHooks() if train else None
    log, capture = CallLog(model), Capture(model, {path: {0} for path in wanted}, folder, hooks)
    torch.manual_seed(0)
    plain = model(*args)
    torch.manual_seed(0)
    with watch_calls(model, log.note):
        model(*args)
    torch.manual_seed(0)
    with watch_calls(model, capture.note):
        seen = model(*args)
    return plain, seen, log, capture


OTHERS = {
    "raises": Raises,
    "draws": Draws,
    "loud": lambda: Loud("x"),
    "enum": lambda: Mood.GOOD,
    "key": lambda: {Raises(): 1},
    "item": lambda: [Raises()],
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_value_whose_own_code_raises_or_draws_changes_nothing_of_the_run(other, tmp_path):
    plain, seen, log, capture = watched(Root(OTHERS[other]()), tmp_path, torch.ones(3))
    assert torch.equal(plain, seen)
    assert set(log.calls) == {"", "part", "after"}
    assert "after" not in capture.failures
    assert load_golden(tmp_path, "after", 0)


def test_what_cannot_be_captured_says_why(tmp_path):
    _, _, log, capture = watched(Root(Raises()), tmp_path, torch.ones(3))
    (call,) = log.calls["part"]
    assert call.uncaptured.startswith("not captured: its arguments cannot be kept: KeyError")
    assert capture.failures["part"][0] == call.uncaptured
    assert not log.calls["after"][0].uncaptured
    assert not golden_file(tmp_path, "part", 0).exists()


@pytest.mark.filterwarnings("ignore")  # of torch's own, when it sets up forward mode
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_calls_inside_a_function_transform_are_not_captured_and_go_on(transform, tmp_path):
    class Transforms(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Takes()

        def forward(self, x):
            if transform == "grad":
                return torch.func.grad(lambda y: self.part(y).sum())(x)
            if transform == "vmap":
                return torch.vmap(self.part)(x)
            return torch.func.jvp(self.part, (x,), (torch.ones_like(x),))[1]

    model = Transforms()
    plain, seen, log, capture = watched(model, tmp_path, torch.ones(3, 2), wanted=("part",), train=True)
    assert torch.equal(plain, seen)
    assert "inside a function transform" in log.calls["part"][0].uncaptured
    assert "inside a function transform" in capture.failures["part"][0]


def test_calls_with_stand_ins_are_no_golden_calls_and_go_on(tmp_path):
    class Looks(nn.Module):
        """Runs its part without values first, to see what shape comes out."""

        def __init__(self):
            super().__init__()
            self.part = Takes()

        def forward(self, x):
            with FakeTensorMode() as mode:
                shape = self.part(mode.from_tensor(x)).shape
            return x + shape[0]

    plain, seen, log, capture = watched(Looks(), tmp_path, torch.ones(3), wanted=("part",))
    assert torch.equal(plain, seen)
    assert "stand for others" in log.calls["part"][0].uncaptured
    assert "stand for others" in capture.failures["part"][0]


def test_a_plain_argument_inside_a_transform_is_kept_as_it_is(tmp_path):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.part, self.ones = Takes(), torch.ones(3)

        def forward(self, x):
            return torch.func.grad(lambda y: (y * self.part(self.ones)).sum())(x)

    _, _, _, capture = watched(Inside(), tmp_path, torch.ones(3), wanted=("part",))
    assert not capture.failures
    ((kept,), _) = load_golden(tmp_path, "part", 0)
    assert kept.tolist() == [1.0, 1.0, 1.0]


def test_modes_of_the_users_do_not_see_the_observers(tmp_path):
    seen = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Takes()

        def forward(self, x):
            with Functions(), Operators():
                return self.part(x)

    model = Counts()
    model(torch.ones(2))
    count = len(seen)
    watched(model, tmp_path, torch.ones(2), wanted=("part",))
    assert len(seen) == 4 * count


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.ones(3)


KINDS = {
    "coo": lambda: torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "zeros without memory": lambda: torch._efficientzerotensor(3),
    "meta": lambda: torch.ones(3, device="meta"),
    "conjugate": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "empty": lambda: torch.ones(0, 3),
    "inference": made_in_inference_mode,
    "masked": lambda: torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
    "wrapper": lambda: TwoTensor(torch.ones(3), torch.zeros(3)),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tensor_is_kept_as_what_it_is(kind, tmp_path):
    tensor = KINDS[kind]()
    plain, seen, log, capture = watched(Root(tensor), tmp_path, torch.ones(3))
    assert torch.equal(plain, seen)
    assert not capture.failures and not log.calls["part"][0].uncaptured
    (_, kept), _ = load_golden(tmp_path, "part", 0)
    assert type(kept) is type(tensor)
    assert (kept.layout, kept.dtype, kept.device) == (tensor.layout, tensor.dtype, tensor.device)
    if kept.layout is torch.strided:
        assert (kept.is_conj(), kept.is_neg()) == (tensor.is_conj(), tensor.is_neg())
        assert kept._is_zerotensor() == tensor._is_zerotensor()


def test_a_subclass_that_refuses_what_it_is_asked_changes_nothing_of_the_run(tmp_path):
    plain, seen, log, _ = watched(Root(torch.ones(2).as_subclass(Refusing)), tmp_path, torch.ones(3))
    assert torch.equal(plain, seen)
    assert set(log.calls) == {"", "part", "after"}


def test_signatures_run_no_code_of_the_users():
    text, _ = signature_of((Raises(), Loud("x"), Mood.GOOD, True, 3, None, 2.5), {})
    leaves = "[0][0]=Raises;[0][1]=Loud('x');[0][2]=Mood.GOOD;[0][3]=True;[0][4]=3;[0][5]=None;[0][6]=float"
    assert text == f"{leaves};[1]=dict"


def test_a_module_that_holds_such_values_is_described():
    model = Root()
    model.part.held = [Raises(), Loud("x"), {Raises(): 2}, Mood.GOOD]
    model.after.extra_repr = lambda: 3
    records = module_records(model, {}, {})
    assert [record.path for record in records] == ["", "part", "after"]
    assert records[1].config != records[2].config


def test_a_hook_that_cannot_keep_a_gradient_does_not_end_the_backward_pass(tmp_path):
    hooks = CotangentHooks()
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    hooks.keep(y, tmp_path / "no such folder" / "a.golden")
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_hooks_are_set_only_for_a_backward_pass_and_taken_off_again(tmp_path):
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self):
            return self.weight

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Returns()

        def forward(self, x):
            return self.part() * x

    model, hooks = Uses(), CotangentHooks()
    watched(model, tmp_path, torch.ones(2), wanted=("part",))
    assert not model.part.weight._backward_hooks
    with watch_calls(model, Capture(model, {"part": {0}}, tmp_path, hooks).note):
        model(torch.ones(2)).sum().backward()
    hooks.remove()
    assert not model.part.weight._backward_hooks
    assert load_cotangents(golden_file(tmp_path, "part", 0))["output"].tolist() == [1.0, 1.0]


def test_what_was_caught_inside_is_not_named_as_failed():
    class Falls(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(4, 4)

        def forward(self, x):
            with contextlib.suppress(RuntimeError):
                self.first(x)
            return self.second(x)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.falls = Falls()

        def forward(self, x):
            return self.falls(x) @ torch.ones(5)

    model = Whole()
    with watch_calls(model, lambda *call: None) as failed_in, pytest.raises(RuntimeError):
        model(torch.ones(2, 4))
    assert failed_in == [""]


def test_an_instance_that_can_be_captured_stands_for_its_unit():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = Takes(), Takes(), Takes()

        def forward(self, x):
            return self.a(x, lambda: x) + self.b(x, print) + self.c(x, max)

    model, log = Pair(), CallLog()
    with watch_calls(model, log.note):
        model(torch.ones(2))
    tree = ModuleTree(module_records(model, log.calls, log.dropped))
    assert tree["a"].uncaptured and not tree["b"].uncaptured
    units = {unit.path: unit.paths for unit in units_of(tree)}
    assert units.get("b", units.get("c")) is not None and "a" not in [path for path in units if len(units[path]) > 1]


def test_a_write_into_what_cannot_be_copied_is_no_difference_of_results():
    from compilebisect.core.call import CallContext
    from compilebisect.runtime.observing import NotObservedError

    class NoCopy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            if function.__name__ in ("clone", "detach"):
                raise LookupError(function.__name__)
            return super().__torch_function__(function, kinds, args, kwargs or {})

    class Writes(nn.Module):
        def forward(self, x):
            x.add_(1)
            return torch.ones(2)

    with pytest.raises(NotObservedError, match="it writes into inputs"):
        run_once(Writes(), (torch.ones(2).as_subclass(NoCopy),), {}, CallContext("no_grad", (), False))


def test_state_that_cannot_be_listed_or_copied_does_not_keep_a_module_from_being_run():
    model = Root()
    model.part.__dict__["held"] = Raises()
    model.part.table = {Raises(): torch.ones(2)}
    model.part.odd = torch.ones(2).as_subclass(Refusing)
    snapshot = StateSnapshot(model)
    snapshot.restore()
    assert isinstance(snapshot.changes(), dict)
