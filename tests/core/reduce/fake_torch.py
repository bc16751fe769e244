"""A stand-in for torch that runs the scripts of these tests: tensors are shapes, and one function is at fault."""

from __future__ import annotations

import linecache
import sys
import types


class Fault(Exception):
    """What the scripts are to show."""


class Tensor:
    """A shape."""

    def __init__(self, *shape: int) -> None:
        assert all(type(size) is int for size in shape)
        self.shape = shape

    def with_self(self, *_args, **_kwargs):
        return self

    __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __sub__ = __neg__ = with_self
    relu = contiguous = to = float = with_self

    def mean(self, dim):
        assert dim < len(self.shape)
        return Tensor(*self.shape[:dim], *self.shape[dim + 1 :])

    def nonzero(self):
        assert len(self.shape) >= 2
        raise Fault


class Module:
    """Calls its forward."""

    def __init__(self):
        self.training = True

    def __call__(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    def eval(self):
        return self


class Linear(Module):
    """Takes what fits alone."""

    def __init__(self, ins, outs, bias=True, device=None):
        super().__init__()
        self.ins, self.outs = ins, outs

    def forward(self, x):
        if x.shape[-1] != self.ins:
            raise ValueError(f"{x.shape} for {self.ins}")
        return Tensor(*x.shape[:-1], self.outs)


class Same(Module):
    """A layer that keeps the shape."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, x):
        assert isinstance(x, Tensor)
        return x


class Sequential(Module):
    """One layer after the other."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = layers

    def __iter__(self):
        return iter(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def fake_torch() -> types.ModuleType:
    torch = types.ModuleType("torch")
    torch.nn = types.ModuleType("torch.nn")
    torch.nn.functional = types.ModuleType("torch.nn.functional")
    torch.Tensor = Tensor
    torch.nn.Module, torch.nn.Linear, torch.nn.Sequential, torch.nn.ModuleList = Module, Linear, Sequential, Sequential
    torch.nn.LayerNorm = torch.nn.Dropout = torch.nn.ReLU = torch.nn.GELU = Same
    torch.manual_seed = lambda seed: None
    torch.randn = torch.rand = lambda *shape, device=None, dtype=None: Tensor(*shape)
    torch.relu = torch.tanh = torch.nn.functional.gelu = torch.sigmoid = Tensor.with_self
    torch.float32 = torch.float64 = "dtype"
    torch.no_grad = lambda: _Context()
    return torch


class _Context:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def __call__(self, function):
        return function


def fault_line(text: str) -> str | None:
    """Run a script; returns the line of it that showed the fault, or None."""
    torch = fake_torch()
    names = {"torch": torch, "torch.nn": torch.nn, "torch.nn.functional": torch.nn.functional}
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    linecache.cache["<script>"] = (len(text), None, text.splitlines(True), "<script>")
    try:
        exec(compile(text, "<script>", "exec", dont_inherit=True), {"__name__": "__main__"})
    except Fault as fault:
        trace, line = fault.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<script>":
                line = trace.tb_lineno
            trace = trace.tb_next
        return text.splitlines()[line - 1].strip()
    except Exception:  # noqa: BLE001 - a script that goes wrong in any other way shows nothing
        return None
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return None
