"""What the operating system offers to keep processes from outliving each other, and to say why one died.

Everything specific to Linux does nothing elsewhere; the closing of sockets then still ends idle processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

# Source: linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread that created it ends; survives `exec`.

    Args:
        parent: process id of the parent, which may have died before this call.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that `kill_strays` finds them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_strays(known: set[int]) -> None:
    """Kill and reap the children of this single-threaded process that are not in `known`."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while children.exists():
        strays = {int(pid) for pid in children.read_text().split()} - known
        if not strays:
            return
        for pid in strays:
            signal_group(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def signal_group(pid: int, number: int) -> None:
    """Signal the process group that `pid` leads, or `pid` alone where it has not made its group yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)


def forgo_core_dumps() -> None:
    """Write no core file when this process crashes: a large one takes minutes and litters the user's folder."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def volunteer_for_memory_killer() -> None:
    """Have the kernel prefer this process, and not the supervisor, when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def memory_kills() -> int | None:
    """Count the processes that the kernel killed for memory so far; None where nothing tells.

    The counter of the own control group is preferred to that of the whole machine.
    """
    for path in memory_event_files():
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return None


def memory_event_files() -> list[Path]:
    """List the files that may hold the kernel's counter of processes killed for memory, the best first."""
    groups = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups[controllers] = path.lstrip("/")
    files = []
    if "memory" in groups:  # version 1; inside a container the root of the mount is the own group
        root = Path("/sys/fs/cgroup/memory")
        files += [root / groups["memory"] / "memory.oom_control", root / "memory.oom_control"]
    elif "" in groups:  # version 2
        root = Path("/sys/fs/cgroup")
        files += [root / groups[""] / "memory.events", root / "memory.events"]
    return [*files, Path("/proc/vmstat")]


def python_command(module: str, argument: str) -> list[str]:
    """Build the command line of a process that runs `module.main(argument)` with the `sys.path` of this process.

    `python -m` would put the working folder first, where a user's `queue.py` or `random.py` hides the real module.
    """
    search_path = [entry or os.getcwd() for entry in sys.path]
    code = f"import sys; sys.path[:] = {search_path!r}; from {module} import main; main(sys.argv.pop())"
    return [sys.executable, "-c", code, argument]
