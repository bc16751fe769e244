"""Types of option values: text of the command line in, checked values out."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from compilebisect.core.json_checks import check_values, integer_from_text
from compilebisect.core.nearest import did_you_mean
from compilebisect.core.outcome import Kind
from compilebisect.error_text import error_text
from compilebisect.errors import SpecError
from compilebisect.settings import DEFAULT_REDUCE_SECONDS, DEFAULT_REPRO_RUNS


class Nearest(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """One of several words; a wrong one is answered with the nearest and all choices."""

    def __init__(self, name: str, choices: Sequence[str]) -> None:
        self.name = name
        self.choices = tuple(choices)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return what the help shows for the value."""
        return f"[{'|'.join(self.choices)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or fail with the nearest match."""
        text = str(value)
        if text not in self.choices:
            near = did_you_mean(text, self.choices)
            self.fail(f"unknown {self.name} {text!r}{near} (choose from {', '.join(self.choices)})", param, ctx)
        return text


class Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.5
    """A value that a function makes of the text; its ValueError is the message."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value; values that are none of the command line's texts pass as they are."""
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(error_text(error), param, ctx)


def kinds_from_text(text: str) -> tuple[Kind, ...]:
    """Return the kinds of a list such as `error,graph_break`, worst first and each once.

    Raises:
        ValueError: a name is unknown, or there is none.
    """
    names = [name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip()]
    choices = [kind.value for kind in Kind]
    for name in names:
        if name not in choices:
            near = did_you_mean(name, choices)
            raise ValueError(f"unknown kind {name!r}{near} (choose from {', '.join(choices)})")
    if not names:
        raise ValueError(f"names no kind (choose from {', '.join(choices)})")
    return tuple(kind for kind in Kind if kind.value in names)


def config_from_text(text: str) -> tuple[str, Any]:
    """Return key and value of `torch._inductor.config.x=VALUE`.

    The value is read as JSON, else as a Python literal, else as a string.

    Raises:
        ValueError: there is no `=`, or the key is no dotted name.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not value.strip():
        raise ValueError(f"{text!r} is not of the form KEY=VALUE, as in torch._inductor.config.epilogue_fusion=false")
    names = key.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ValueError(
            f"{key!r} is no torch config; give its whole name, such as torch._dynamo.config.cache_size_limit"
        )
    parsed = _value_from_text(value.strip())
    _check(parsed)
    return key, parsed


def _value_from_text(text: str) -> Any:
    try:
        return _json(text)
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a literal, as the report repeats the settings."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


def init_from_text(text: str) -> dict[str, Any]:
    """Return the keyword arguments of a JSON object.

    Raises:
        ValueError: the text is no JSON, or no object.
    """
    try:
        value = _json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error_text(error)}; write it as in '{{\"hidden\": 64}}'") from error
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object of keyword arguments, as in '{\"hidden\": 64}'")
    _check(value)
    return value


def optimizer_from_text(text: str) -> dict[str, Any]:
    """Return `name` and keyword arguments of an optimizer, given as its name or as a JSON object.

    Raises:
        ValueError: the text is empty, no JSON object, or one without a name.
    """
    if not text.lstrip().startswith("{"):
        if not text.strip().isidentifier():
            raise ValueError(f"{text!r} names no optimizer; write adamw, or {_OPTIMIZER_FORM}")
        return {"name": text.strip()}
    try:
        value = _json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error_text(error)}; write it as in {_OPTIMIZER_FORM}") from error
    if not isinstance(value.get("name"), str):
        raise ValueError(f"has no 'name'; write it as in {_OPTIMIZER_FORM}")
    _check(value)
    return dict(value)


def _json(text: str) -> Any:
    return json.loads(text, parse_int=integer_from_text)


def _check(value: Any) -> None:
    """Check that the worker can be handed a value, and the report hold it.

    Raises:
        ValueError: it is too large, too deep or no text.
    """
    try:
        check_values(value, "it")
    except SpecError as error:
        raise ValueError(f"{error.where}: {error.what}") from error


_OPTIMIZER_FORM = """'{"name": "sgd", "lr": 0.1}'"""


def tolerance_from_text(text: str) -> tuple[float, float]:
    """Return (rtol, atol) of `RTOL[,ATOL]`; without ATOL it equals RTOL.

    Raises:
        ValueError: not one or two finite numbers of at least 0.
    """
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError(f"{text!r} is not RTOL[,ATOL]: one or two numbers of at least 0, as in 1e-3,1e-5")
    return numbers[0], numbers[-1]


def whole_number_from(minimum: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least `minimum` that fit into 63 bits."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value < 2**63:
            raise ValueError(f"{text!r} is no whole number of at least {minimum}")
        return value

    return parse


def device_from_text(text: str) -> str:
    """Return a device's name: `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ValueError: it is none of these.
    """
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        return text
    choices = ("auto", "cpu", "cuda", "cuda:N")
    raise ValueError(f"unknown device {text!r}{did_you_mean(text, choices)} (choose from {', '.join(choices)})")


def seconds(text: str) -> float:
    """Return a number of seconds, 0 included.

    Raises:
        ValueError: it is no such number.
    """
    return 0.0 if text.strip() in ("0", "0.0") else positive_seconds(text)


def positive_seconds(text: str) -> float:
    """Return a number of seconds above 0.

    Raises:
        ValueError: it is no such number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{text!r} is no number of seconds above 0")
    return value


# Options that several commands have.
REDUCE_SECONDS = click.option(
    "--reduce-seconds",
    type=Parsed("SECONDS", seconds),
    default=DEFAULT_REDUCE_SECONDS,
    show_default=True,
    help="The longest that one repro script is made smaller; 0 leaves it as it is.",
)
REPRO_RUNS = click.option(
    "--repro-runs",
    type=Parsed("N", whole_number_from(1)),
    default=DEFAULT_REPRO_RUNS,
    show_default=True,
    help="How often a repro script is run as a proof, side by side in fresh processes.",
)
ANY_SCRIPT = click.option(
    "--any-script",
    is_flag=True,
    help="Take a script that is no repro script, and believe its exit status alone; an exception counts as 125.",
)
