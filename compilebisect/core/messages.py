"""What supervisor and workers tell each other, as data."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from compilebisect.core.fingerprint import FaultKey
from compilebisect.core.module_tree import GoldenCall, ModuleRecord
from compilebisect.core.outcome import Fault, Observation
from compilebisect.core.strategies import Strategy, StrategyResult
from compilebisect.core.timing import UnitTiming

# In the text of a probe's phase, what stands before the instance that is run, where it is not the compiled one.
INSTANCE_MARK = " of instance "


class UserErrorText(msgspec.Struct, frozen=True, kw_only=True):
    """An error for the user, raised in a worker; fields as in `errors.CompilebisectError`."""

    name: str
    what: str
    where: str = ""
    fix: str = ""
    detail: str = ""


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked to probe.

    `calls` are golden calls of `path`, whose values lie in `folder`; `instances` are further modules of the unit with
    their own golden calls. `backend` is the name of the backend, `fenced` the paths of modules that stay eager.
    With `variants` the module is fed that many variants of its inputs in a row, and what each gives is compared;
    the variant with the number k has its golden calls in the folder that `variant_folder` gives.
    With `compares_rows` the module is called some more times, each in the state that the last call left, and each of
    these calls is compared with eager mode.
    With `tells_of_below` recompiles of modules below count even where some are fenced.
    With `compiles_only` all of `path` but that module below it runs in eager mode.
    With `in_place` the whole model runs, and only `path` and `instances` are compiled in it; `methods` names by path
    the methods besides `forward` through which they are entered.
    `tolerance` is (rtol, atol) for all modules, `tolerances` for those whose path fits a glob.
    `mends_breaks` asks for a look behind its graph breaks instead; `breaks_below` are those of modules below it.
    """

    path: str
    folder: str
    calls: tuple[GoldenCall, ...]
    instances: tuple[tuple[str, tuple[GoldenCall, ...]], ...] = ()
    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fenced: tuple[str, ...] = ()
    train: bool = False
    seed: int = 0
    tolerance: tuple[float, float] | None = None
    tolerances: dict[str, tuple[float, float]] = {}
    compares_values: bool = True
    compares_rows: bool = False
    looks_for_recompiles: bool = False
    tells_of_below: bool = False
    variants: int = 0
    mends_breaks: bool = False
    breaks_below: tuple[FaultKey, ...] = ()
    compiles_only: str | None = None
    in_place: bool = False
    methods: dict[str, tuple[str, ...]] = {}

    def tolerance_for(self, path: str) -> tuple[float, float] | None:
        """Return the tolerance that was given for a module, None where it is to be measured."""
        if self.tolerance is not None:
            return self.tolerance
        return next((given for pattern, given in self.tolerances.items() if fnmatchcase(path, pattern)), None)


class TimingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A module to time on its golden calls: in eager mode alone, or with what is compiled of it beside that."""

    probe: ProbeOrder
    compiles: bool = True


class StrategyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A way to compile the whole model, to be measured on that many variants; `buckets` are lengths by dim."""

    strategy: Strategy
    variants: int
    buckets: dict[str, tuple[int, ...]] = {}


def variant_folder(folder: str, variant: int) -> str:
    """Return where the golden calls of a run with another variant of the inputs lie; the first has number 0."""
    return f"{folder}-variant{variant}" if variant else folder


class CaptureOrder(msgspec.Struct, frozen=True):
    """Golden calls to keep in files: indices of calls by module path, in a run with one variant of the inputs."""

    folder: str
    wanted: dict[str, tuple[int, ...]]
    variant: int = 0


class ReproOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A fault for which repro cases are wanted.

    `tensors` is the folder for saved tensors. `level` says how independent the script is to be: `standalone` has
    seeded random numbers, `saved` the golden ones, `import` also takes the user's code by import.
    """

    probe: ProbeOrder
    fault: Fault
    tensors: str
    name: str
    level: str = "standalone"
    deadline_s: float = 60.0
    config: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class KeepTensorsOrder(msgspec.Struct, frozen=True):
    """A file of tensors that is to hold no others than these."""

    path: str
    keys: tuple[str, ...]


class ScriptOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A script to run, with its arguments and what is added to the environment."""

    path: str
    args: tuple[str, ...] = ()
    environment: dict[str, str] = {}


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What the eager run told: the modules, where the model comes from, and what it ran on.

    `device_share` is the part of a GPU's memory that the run took at its peak; 0 on a CPU.
    """

    modules: tuple[ModuleRecord, ...]
    root_dir: str
    device: str
    torch: str
    triton: str | None
    cuda: str | None
    eager_s: float
    peak_bytes: int
    device_share: float = 0.0
    variants: int = 1
    notes: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to any request: an error for the user, or the value that belongs to the request."""

    error: UserErrorText | None = None
    description: Description | None = None
    capture_failures: dict[str, dict[int, str]] = {}
    observation: Observation | None = None
    timing: UnitTiming | None = None
    strategy: StrategyResult | None = None
    cases: bytes = b""
