"""Models of the worst sort, one class each; every one runs in eager mode. `EXPECTED` says how that has to end.

Each stands below a model, beside healthy layers: `Net(name)`. Only what torch itself does with them is expected.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import signal
import sys
import threading
import time
import warnings

import torch
from torch import nn


class _OwnBase(BaseException):
    pass


class _RaisesInText(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class _NoText(Exception):
    def __str__(self):
        return 7


def _recurse():
    return _recurse()


def _raise(error):
    raise error


ENDS = {
    "exit": lambda: sys.exit(0),
    "base": lambda: _raise(_OwnBase("own")),
    "generator_exit": lambda: _raise(GeneratorExit()),
    "text_raises": lambda: _raise(_RaisesInText()),
    "no_text": lambda: _raise(_NoText()),
    "surrogate": lambda: _raise(ValueError("\ud800")),
    "markup": lambda: _raise(ValueError("x\n::error::boo\x1b[31m\u202e\x00 <script>")),
    "recursion": _recurse,
    "memory": lambda: _raise(MemoryError()),
    "stop": lambda: _raise(StopIteration()),
    "leave_0": lambda: os._exit(0),
    "leave_1": lambda: os._exit(1),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "hang": lambda: time.sleep(600),
}


@torch.library.custom_op("hostile::twice", mutates_args=())
def twice(x: torch.Tensor, how: str) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x, how):
    ENDS[how]()
    return torch.empty_like(x)


class _Fake(nn.Module):
    """Ends in some way while it is traced."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return torch.ops.hostile.twice(x, self.how)


class WrongValue(nn.Module):
    def forward(self, x):
        return x + 1 if torch.compiler.is_compiling() else x


class WrongShape(nn.Module):
    def forward(self, x):
        return x[:1] if torch.compiler.is_compiling() else x


class WrongNan(nn.Module):
    def forward(self, x):
        return x * float("nan") if torch.compiler.is_compiling() else x


class WrongWrite(nn.Module):
    """Right in what it returns, wrong in what it leaves in its input."""

    def forward(self, x):
        y = x * 1
        if torch.compiler.is_compiling():
            x.add_(1)
        return y


class WrongBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        if torch.compiler.is_compiling():
            self.seen.add_(1)
        return x * 1


class WrongType(nn.Module):
    def forward(self, x):
        y = x * 2
        return (y,) if torch.compiler.is_compiling() else [y]


class HookExits(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(self._look)

    @staticmethod
    def _look(module, args):
        if torch.compiler.is_compiling():
            torch.ops.hostile.twice(args[0], "exit")

    def forward(self, x):
        return x * 2


class AttributeRaises(nn.Module):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise RuntimeError(f"no {name} here") from None

    def forward(self, x):
        return x * 2


class ReprRaises(nn.Module):
    def __repr__(self):
        raise RuntimeError("no repr")

    def extra_repr(self):
        raise SystemExit(3)

    def forward(self, x):
        return x * 2


class ComparisonRaises(nn.Module):
    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __hash__(self):
        return 7

    def forward(self, x):
        return x * 2


class IsFalse(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def __bool__(self):
        return False

    def __len__(self):
        return 0

    def forward(self, x):
        return self.scale(x)


class CannotBeCopied(nn.Module):
    def __deepcopy__(self, memo):
        raise SystemExit(4)

    def __getstate__(self):
        raise KeyboardInterrupt

    def forward(self, x):
        return x * 2


class PropertyRaises(nn.Module):
    @property
    def secret(self):
        raise SystemExit(5)

    def forward(self, x):
        return x * 2


class EvalReturnsNothing(nn.Module):
    def eval(self):
        super().eval()

    def train(self, mode=True):
        super().train(mode)

    def forward(self, x):
        return x * 2


class HostileArgument:
    """An argument that resists being looked at, copied and kept."""

    def __init__(self):
        self.value = torch.ones(4)

    def __reduce__(self):
        raise KeyboardInterrupt

    def __deepcopy__(self, memo):
        raise SystemExit(6)

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __hash__(self):
        return 1


class _Takes(nn.Module):
    def forward(self, x, argument):
        return x * argument.value


class GetsHostileArgument(nn.Module):
    def __init__(self):
        super().__init__()
        self.takes = _Takes()
        self.argument = HostileArgument()

    def forward(self, x):
        return self.takes(x, self.argument)


class _Multiplies(nn.Module):
    def forward(self, x, other):
        return torch.sparse.mm(other, x) if other.is_sparse else x * other


class GetsSparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.multiply = _Multiplies()

    def forward(self, x):
        return self.multiply(x, torch.eye(2).to_sparse())


class GetsComplex(nn.Module):
    def __init__(self):
        super().__init__()
        self.multiply = _Multiplies()

    def forward(self, x):
        return self.multiply(x, torch.full((4,), 1 + 2j).conj()).abs()


class GetsLazyZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.multiply = _Multiplies()

    def forward(self, x):
        return self.multiply(x, torch._efficientzerotensor((4,)).clone() + 1)


class InsideTransform(nn.Module):
    def __init__(self):
        super().__init__()
        self.multiply = _Multiplies()

    def forward(self, x):
        return torch.vmap(lambda row: self.multiply(row, row))(x)


class ReturnsNothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Linear(4, 4)

    def forward(self, x):
        return {"y": self.seen(x), "none": None, "empty": torch.empty(0, 3)}["y"]


@dataclasses.dataclass
class _Out:
    y: torch.Tensor
    rest: object = None


class ReturnsOddities(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = _Oddities()

    def forward(self, x):
        return self.inner(x).y


class _Oddities(nn.Module):
    def forward(self, x):
        counts = collections.OrderedDict(a=1, b=float("nan"))
        return _Out(x * 2, (None, "text", counts, torch.empty(0)))


class Counts(nn.Module):
    """Another result in each call, in eager mode too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("number", torch.zeros(()))

    def forward(self, x):
        self.number += 1
        return x * self.number


class Draws(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class ChangesTheProcess(nn.Module):
    """Changes where the process stands, what it prints to and what it warns of."""

    def __init__(self):
        super().__init__()
        os.chdir("/")
        sys.setrecursionlimit(900)
        warnings.simplefilter("error")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)


class PrintsMuch(nn.Module):
    def __init__(self):
        super().__init__()
        print("x" * 30_000_000)
        print("::error::from the model", file=sys.stderr)
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)


class OddNames(nn.Module):
    """A child and its class whose names are markup, commands and statements."""

    def __init__(self):
        super().__init__()
        name = "a\n::error::b\x1b[31m\u202e<b>|`*'\"\\"
        sort = type("Sick\nimport os; os._exit(1)\n#", (WrongValue,), {})
        self.add_module(name, sort())
        self.name = name

    def forward(self, x):
        return self._modules[self.name](x)


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.sick = _Fake(name) if name in ENDS else globals()[name]()

    def forward(self, x):
        y = self.sick(self.first(x))
        return y if torch.is_tensor(y) else y[0]


_ENDS_PROCESS = ("leave_0", "leave_1", "kill", "abort")
_SICK = {
    "crash": _ENDS_PROCESS,
    "timeout": ("hang",),
    "error": (*(name for name in ENDS if name not in (*_ENDS_PROCESS, "hang")), "HookExits"),
    "divergence": ("WrongValue", "WrongShape", "WrongNan", "WrongWrite", "WrongBuffer", "WrongType"),
}
_HEALTHY = (
    *("IsFalse", "PropertyRaises", "EvalReturnsNothing", "GetsHostileArgument", "GetsComplex", "GetsLazyZero"),
    *("InsideTransform", "ReturnsNothing", "ReturnsOddities", "Counts", "Draws", "ChangesTheProcess", "PrintsMuch"),
)
_ASK_TORCH = ("AttributeRaises", "ReprRaises", "ComparisonRaises", "CannotBeCopied")

# The modules that have to be blamed, with the kind; None where torch alone has to be asked.
EXPECTED: dict[str, dict[str, str] | None] = {
    **{name: {"sick": kind} for kind, names in _SICK.items() for name in names},
    "OddNames": {"sick.a\n::error::b\x1b[31m\u202e<b>|`*'\"\\": "divergence"},
    "GetsSparse": {"sick": "graph_break", "sick.multiply": "graph_break"},
    **{name: {} for name in _HEALTHY},
    **dict.fromkeys(_ASK_TORCH),
}
