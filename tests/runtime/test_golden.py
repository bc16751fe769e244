from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from compilebisect.runtime.cotangents import CotangentHooks, load_cotangents
from compilebisect.runtime.golden import (
    CallLog,
    Capture,
    apply_golden_state,
    golden_file,
    load_golden,
    watch_calls,
)


def log_calls(model, *args, **kwargs):
    log = CallLog()
    with watch_calls(model, log.note), torch.no_grad():
        model(*args, **kwargs)
    return log


def captured(model, folder, wanted, *args):
    capture = Capture(model, wanted, folder)
    with watch_calls(model, capture.note), torch.no_grad():
        model(*args)
    return capture


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x)[:1])


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x, scale=1.0):
        self.step += 1
        self.total += x
        return x * scale


class Repeats(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Counting()

    def forward(self, x):
        for number in range(5):
            x = self.inner(x, scale=number / 2)
        return x


def test_calls_with_other_shapes_are_golden_calls_of_their_own():
    calls = log_calls(Twice(), torch.ones(2, 4)).calls["fc"]
    assert [call.index for call in calls] == [0, 1]


def test_equal_calls_are_counted_and_a_changing_float_is_no_new_signature():
    (call,) = log_calls(Repeats(), torch.ones(2)).calls["inner"]
    assert call.count == 5
    assert call.indices == (0, 4), "the first and the last are compared"


def test_the_call_site_is_the_users_line():
    (call, _) = log_calls(Twice(), torch.ones(2, 4)).calls["fc"]
    assert call.call_site.code == "return self.fc(self.fc(x)[:1])"
    assert call.call_site.file == __file__


def test_hooks_are_not_used_so_nothing_of_the_model_changes():
    model = Twice()
    log_calls(model, torch.ones(2, 4))
    assert not model.fc._forward_hooks and not model.fc._forward_pre_hooks


def test_the_innermost_failing_module_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(5, 4)))
    with watch_calls(model, lambda *call: None) as failed_in, pytest.raises(RuntimeError):
        model(torch.ones(2, 4))
    assert failed_in == ["1.0", "1", ""]


def test_strides_and_shared_storage_survive_the_file(tmp_path):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x):
            return self.part({"whole": x, "column": x[:, 1:2], "turned": x.t()})["whole"]

    captured(Root(), tmp_path, {"part": {0}}, torch.arange(12.0).view(3, 4))
    ((kept,), _) = load_golden(tmp_path, "part", 0)
    assert kept["turned"].stride() == (1, 4)
    kept["whole"].zero_()
    assert kept["column"].abs().sum() == 0


def test_the_values_are_those_before_the_call_changed_them(tmp_path):
    class InPlace(nn.Module):
        def forward(self, x):
            return x.add_(1)

    model = nn.Sequential(InPlace())
    captured(model, tmp_path, {"0": {0}}, torch.zeros(2))
    ((kept,), _) = load_golden(tmp_path, "0", 0)
    assert kept.tolist() == [0.0, 0.0]


def test_state_that_changed_since_loading_comes_along(tmp_path):
    captured(Repeats(), tmp_path, {"inner": {3}}, torch.ones(2))
    fresh = Counting()
    apply_golden_state(fresh, tmp_path, "inner", 3)
    assert fresh.step == 3
    assert fresh.total.tolist() == [1.0, 1.0]


def test_arguments_that_cannot_be_kept_are_told_and_do_not_end_the_run(tmp_path):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x):
            return self.part(lambda: x)()

    capture = captured(Root(), tmp_path, {"part": {0}, "": {0}}, torch.ones(2))
    assert list(capture.failures) == ["part"]
    assert "cannot be kept" in capture.failures["part"][0]
    assert load_golden(tmp_path, "", 0)[0][0].tolist() == [1.0, 1.0]


def test_a_view_of_another_argument_is_one_in_the_file_too(tmp_path):
    base = torch.arange(12.0).view(3, 4) + 0
    captured(nn.Sequential(nn.Identity()), tmp_path, {"0": {0}}, {"base": base, "part": base[1:], "again": base})
    ((kept,), _) = load_golden(tmp_path, "0", 0)
    assert kept["part"]._base is kept["base"] and kept["again"] is kept["base"]


def test_lazy_zeros_and_conjugates_are_kept_in_the_file(tmp_path):
    turned = torch.randn(3, dtype=torch.complex64).conj()
    zero = torch._efficientzerotensor((2,))
    captured(nn.Sequential(nn.Identity()), tmp_path, {"0": {0}}, [zero, turned, turned[1:]])
    (((zero, copied, part),), _) = load_golden(tmp_path, "0", 0)
    assert zero._is_zerotensor() and copied.is_conj() and part.is_conj()
    assert torch.equal(part, turned[1:])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_under_a_checkpoint_the_call_that_gradients_reach_is_the_golden_one(tmp_path, use_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.block = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

        def forward(self, x):
            x = checkpoint(self.block, self.first(x), use_reentrant=use_reentrant)
            return checkpoint(self.block, x, use_reentrant=use_reentrant)

    model, x = Checkpointed(), torch.randn(2, 4)
    log = CallLog(model)
    with watch_calls(model, log.note):
        model(x).sum().backward()
    for path in ("block", "block.0"):
        with_grad = [call for call in log.calls[path] if call.context.grad_mode == "grad"]
        wanted = {index for call in with_grad for index in call.indices}
        capture = Capture(model, {path: wanted}, tmp_path, CotangentHooks())
        with watch_calls(model, capture.note):
            model(x).sum().backward()
        assert wanted and all(load_cotangents(golden_file(tmp_path, path, index)) for index in wanted)
