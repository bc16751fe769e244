"""A program with a supervisor, a hanging worker and a grandchild; run by `test_supervisor_death`.

Arguments: a scratch folder, and what the worker does. Prints the pids of all that it started, then waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from compilebisect.workers.supervisor import Supervisor

# A shell starts background jobs with the signal ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
scratch = Path(sys.argv[1])
try:
    with Supervisor(dict(os.environ), scratch, sys.argv[3:]) as supervisor:
        worker = supervisor.start_worker()
        if sys.argv[2] == "preload":
            print(supervisor.server_pid, flush=True)
        else:
            worker.send("worker_handlers:start_child", f"{sys.argv[2]}:{scratch / 'pid'}".encode(), timeout_s=60)
            other = supervisor.start_worker(fresh_interpreter=True)
            other.send("worker_handlers:hang_deafly", b"", timeout_s=60)
            while not (scratch / "pid").exists() or other.pid is None:
                supervisor.wait_any([worker, other], 0.05)
            time.sleep(0.2)
            print(supervisor.server_pid, worker.pid, other.pid, (scratch / "pid").read_text(), flush=True)
        supervisor.wait_any([worker])
except KeyboardInterrupt:
    print("interrupted", flush=True)
