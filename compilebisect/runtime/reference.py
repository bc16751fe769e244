"""The float64 twin of a module: what exact arithmetic would give, as far as torch can compute it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from compilebisect.attempt import attempt
from compilebisect.error_text import error_line
from compilebisect.runtime.tensor_copy import extent, is_plain, storage_key, without_expanded
from compilebisect.runtime.values import map_tensors, tensors_in

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
_CASTS = ("float", "half", "bfloat16")
_DRAWS = ("rand", "randn", "normal", "rand_like", "randn_like")
# Attributes of a tensor, of which only the value is of interest; a copy of a large one would be made for nothing.
_READS = ("__get__", "__set__", "size", "dim", "stride", "numel", "is_floating_point", "data_ptr", "requires_grad_")
# A module beyond this much memory in float64 is not copied, so that a worker stays near the size of the model.
_LARGEST_COPY_BYTES = 256 << 20
_DROPOUTS = tuple(getattr(F, name) for name in ("dropout", "dropout1d", "dropout2d", "dropout3d"))
_DRAWS_IN_PLACE = ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_")


class Float64Twin:
    """A module that computes in float64; `module` is None where that was not possible, and `reason` says why.

    With `widens_parameters` it is the module itself, whose tensors are widened where an operator takes them.
    """

    def __init__(
        self,
        module: nn.Module | None,
        reason: str = "",
        low_dtype: torch.dtype = torch.float32,
        widens_parameters: bool = False,
    ) -> None:
        self.module = module
        self.reason = reason
        self.low_dtype = low_dtype
        self.widens_parameters = widens_parameters

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Make dtypes that the code itself asks for float64 too, and random draws those of the original dtype."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Widened(self.low_dtype, default, self.widens_parameters):
                yield
        finally:
            torch.set_default_dtype(default)


def to_float64(module: nn.Module) -> Float64Twin:
    """Copy a module in float64 without touching it.

    Its tensors go from where they are straight to float64: no second copy in their own dtype is made.
    """
    tensors = _tensors_of(module)
    low_dtype = _main_dtype(tensors)
    needed = sum(8 * tensor.numel() for tensor in tensors if tensor.dtype in _WIDE and is_plain(tensor))
    devices = {tensor.device for tensor in tensors}
    if needed > _LARGEST_COPY_BYTES:
        return Float64Twin(module, low_dtype=low_dtype, widens_parameters=True)
    free = min((_free_bytes(device) for device in devices), default=None, key=lambda size: size)
    if free is not None and needed > free // 2:
        return Float64Twin(None, f"needs {needed >> 20} MB of memory in float64, {free >> 20} MB are free", low_dtype)
    memo: dict[int, Any] = {}

    def copied() -> nn.Module:
        widener = _Widener(tensors)
        for tensor in tensors:
            if not nn.parameter.is_lazy(tensor):
                memo[id(tensor)] = widener.widened(tensor)
        with torch.no_grad():
            return copy.deepcopy(module, memo)

    twin = attempt(copied)
    if twin.error is not None:  # `__deepcopy__` is the user's code; the reason reaches the report
        return Float64Twin(None, f"cannot be copied: {error_line(twin.error)}", low_dtype)
    return Float64Twin(twin.value, low_dtype=low_dtype)


def inputs_to_float64(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy inputs with their floating tensors in float64; those that share memory do so in the copy."""
    widener = _Widener([tensor for _, tensor in tensors_in((args, kwargs))])
    wide: tuple[tuple[Any, ...], dict[str, Any]] = map_tensors((args, kwargs), widener.widened)
    return wide


class _Widened(TorchFunctionMode):
    """Reads float64 where code asks for a narrower floating dtype by name."""

    def __init__(self, low_dtype: torch.dtype, default: torch.dtype, widens_tensors: bool) -> None:
        super().__init__()
        self._low_dtype = low_dtype
        self._default = default
        self._widens_tensors = widens_tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._widens_tensors and name not in _READS and not name.endswith("_"):
            args, kwargs = map_tensors((args, kwargs), _widened_at_use)
        if name in _CASTS and args and isinstance(args[0], torch.Tensor):
            return args[0].to(_WIDE.get(args[0].dtype, torch.float64) if args[0].is_complex() else torch.float64)
        if name in _DRAWS:
            return self._draw(func, name, args, kwargs)
        if func in _DROPOUTS:
            return self._drop(func, *args, **kwargs)
        if name in _DRAWS_IN_PLACE and args[0].dtype is torch.float64:
            drawn = func(torch.empty_like(args[0], dtype=self._low_dtype), *args[1:], **kwargs)
            return args[0].copy_(drawn)
        args = tuple(_WIDE.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args)
        kwargs = {key: _WIDE.get(arg, arg) if isinstance(arg, torch.dtype) else arg for key, arg in kwargs.items()}
        return func(*args, **kwargs)

    def _drop(
        self, func: Callable[..., Any], input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        """Drop what the original dtype would drop, and scale exactly."""
        if not training or p == 0.0 or input.dtype is not torch.float64:
            return func(input, p, training, inplace)
        kept = func(torch.ones_like(input, dtype=self._low_dtype), p, True, False) != 0
        scaled = kept * (0.0 if p == 1.0 else 1.0 / (1.0 - p))
        return input.mul_(scaled) if inplace else input * scaled

    def _draw(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Random draws differ by dtype, so they are made in the original one."""
        kwargs = dict(kwargs)
        if kwargs.get("dtype") is None and name != "normal":
            kwargs["dtype"] = self._low_dtype if name.endswith("_like") else self._default
        drawn = func(*args, **kwargs)
        return drawn.to(torch.float64) if drawn.dtype in _WIDE and not drawn.is_complex() else drawn


def _widened_at_use(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_WIDE[tensor.dtype]) if tensor.dtype in _WIDE and is_plain(tensor) else tensor


class _Widener:
    """Copies tensors in float64; what one of them is changed to is seen through others that share its memory."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._members: dict[tuple[str, int], dict[int, torch.Tensor]] = {}
        for tensor in tensors:
            key = None if nn.parameter.is_lazy(tensor) else storage_key(tensor)
            if key is not None:
                self._members.setdefault(key, {})[id(tensor)] = tensor
        self._memory: dict[tuple[str, int], tuple[torch.Tensor, int]] = {}

    def widened(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy one of the tensors; a leaf that requires a gradient if it does."""
        key = storage_key(tensor)
        sharers = list(self._members.get(key, {}).values()) if key is not None else []
        # memory under two dtypes, or read with a sign turned over, has no float64 likeness
        is_alike = all(
            other.dtype == tensor.dtype and other.is_conj() == tensor.is_conj() and not other.is_neg()
            for other in sharers
        )
        if key is None or len(sharers) < 2 or not is_alike or tensor.is_inference():
            return _widened(tensor)
        if key not in self._memory:
            ranges = [extent(other) for other in sharers]
            size = tensor.element_size()
            first, end = min(low for low, _ in ranges) // size, max(high for _, high in ranges) // size
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(tensor.untyped_storage(), first, (end - first,), (1,))
            self._memory[key] = flat.to(_WIDE.get(tensor.dtype, tensor.dtype), copy=True), first
        memory, first = self._memory[key]
        with torch.no_grad():
            new = torch.empty(0, dtype=memory.dtype, device=memory.device)
            new.set_(memory.untyped_storage(), tensor.storage_offset() - first, tensor.shape, tensor.stride())
        return _with_flags(new.conj() if tensor.is_conj() else new, tensor)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _WIDE or not is_plain(tensor):
        new = tensor.detach().clone()
    else:
        new = _strided_like(tensor.detach(), _WIDE[tensor.dtype])
    return _with_flags(new, tensor)


def _with_flags(new: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, requires_grad=tensor.requires_grad)
    return new.requires_grad_() if tensor.requires_grad and not new.is_inference() else new


def _strided_like(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a tensor and keep its strides, expanded dimensions included."""
    with torch.inference_mode(False), torch.no_grad():
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
        try:
            without_expanded(new).copy_(without_expanded(tensor))
        except RuntimeError:  # overlapping in another way than by expanding
            return tensor.to(dtype)
        return new


def _tensors_of(module: nn.Module) -> list[torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    for submodule in module.modules():
        held = [submodule._parameters, submodule._buffers]
        plain = {name: item for name, item in submodule.__dict__.items() if name != "_modules"}
        for _, tensor in tensors_in([*held, plain]):
            found[id(tensor)] = tensor
    return list(found.values())


def _main_dtype(tensors: list[torch.Tensor]) -> torch.dtype:
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors:
        if tensor.dtype in _WIDE and is_plain(tensor):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in _memory_lines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62


def _memory_lines() -> list[str]:
    path = Path("/proc/meminfo")  # Linux alone has it; elsewhere the allocation itself tells
    return path.read_text().splitlines() if path.exists() else []
