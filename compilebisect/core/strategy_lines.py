"""The lines of code that a strategy takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compilebisect.core.strategies import Mark, Strategy


def code_lines(
    strategy: Strategy,
    marks: Sequence[Mark],
    buckets: Mapping[str, Sequence[int]],
    padded: Mapping[str, Mapping[int, str]],
    *,
    parameters: Mapping[str, str],
) -> tuple[str, ...]:
    """Return what a user writes to get a strategy.

    Args:
        strategy: which one.
        marks: dims that are to be dynamic.
        buckets: lengths to pad to, by dim.
        padded: dims by path and index, as `named_dims` gives them.
        parameters: what the arguments are called, by the beginning of their paths: `args[0]` is `x`, say.
    """

    def name(path: str) -> str:
        start = max((key for key in parameters if path.startswith(key)), key=len, default="")
        return f"{parameters[start]}{path[len(start) :]}" if start else path

    if strategy is Strategy.AUTOMATIC:
        return ("model = torch.compile(model)",)
    if strategy is Strategy.DYNAMIC:
        return ("model = torch.compile(model, dynamic=True)",)
    if strategy is Strategy.STATIC:
        return ("model = torch.compile(model, dynamic=False)",)
    if strategy is Strategy.MARK_DYNAMIC:
        lines = ["model = torch.compile(model)", "# before each call:"]
        for mark in marks:
            bounds = "".join(
                f", {key}={bound}" for key, bound in (("min", mark.min), ("max", mark.max)) if bound is not None
            )
            lines.append(f"torch._dynamo.mark_dynamic({name(mark.path)}, {mark.dim}{bounds})")
        return tuple(lines)
    lines = ["model = torch.compile(model, dynamic=False)", "# before each call:"]
    for dim, lengths in buckets.items():
        places = [(path, index) for path, dims in padded.items() for index, other in dims.items() if other == dim]
        path, index = places[0]
        lines.append(
            f"{dim} = next(n for n in {tuple(lengths)} if n >= {name(path)}.shape[{index}])",
        )
        for path, index in places:
            tensor = name(path)
            lines.append(
                f"{tensor} = torch.cat([{tensor}, {tensor}.new_zeros(*{tensor}.shape[:{index}], "
                f"{dim} - {tensor}.shape[{index}], *{tensor}.shape[{index + 1}:])], {index})"
            )
    return (*lines, "# the output covers padded positions too: cut it, or mask them")
