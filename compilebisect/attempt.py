"""The one place in which whatever the code of others raises is caught, and becomes data. For worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """How a run of code that is not ours ended: with a value, or with the `error` that it raised."""

    error: BaseException | None
    _value: T | None = None

    @property
    def value(self) -> T:
        """What the run returned; the error is raised again where there is none."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value] # None only where that is what the run returned


def attempt(run: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Attempt[T]:
    """Call the user's code, a library's or the compiler's, and return what it gives or raises.

    Whatever it raises: a worker has a session of its own, so that no Ctrl-C of the user's reaches it. A
    KeyboardInterrupt or a SystemExit in it comes from the code that is run, and is as much of a failure as any other.
    """
    try:
        return Attempt(None, run(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 - the one catch-all, see above
        return Attempt(error)
