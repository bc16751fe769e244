from __future__ import annotations

import inspect

from compilebisect.core.outcome import Kind, Stage
from compilebisect.search.process_end import observation_from_death, observation_from_timeout
from compilebisect.workers.call_outcome import Died, TimedOut

HERE = inspect.getsourcefile(lambda: None)
STACK = f"""Fatal Python error: Aborted

Current thread 0x00007f0000000000 (most recent call first):
  File "{HERE}", line 8 in fake_kernel
  File "/usr/lib/python3.11/site-packages/torch/_subclasses/fake_tensor.py", line 2000 in dispatch
  File "/usr/lib/python3.11/site-packages/torch/_dynamo/utils.py", line 3000 in run_node
"""


def test_a_signal_becomes_a_crash_with_stage_and_line():
    (fault,) = observation_from_death(Died(signal="SIGABRT", phase="dynamo", stack=STACK)).faults
    assert (fault.kind, fault.type, fault.stage) == (Kind.CRASH, "SIGABRT", Stage.DYNAMO)
    assert (fault.location.function, fault.location.line) == ("fake_kernel", 8)


def test_an_exit_status_is_named():
    (fault,) = observation_from_death(Died(exit_code=3, phase="running")).faults
    assert (fault.type, fault.stage) == ("exit status 3", Stage.RUNTIME)


def test_a_kill_that_nobody_here_sent_points_to_memory():
    (fault,) = observation_from_death(Died(signal="SIGKILL", phase="backend")).faults
    assert "out-of-memory" in fault.message


def test_a_death_in_eager_mode_is_no_fault_of_the_compiler():
    seen = observation_from_death(Died(signal="SIGSEGV", phase="comparing"))
    assert not seen.faults and "eager" in seen.untested


def test_a_death_while_an_instance_runs_belongs_to_that_instance():
    seen = observation_from_death(Died(signal="SIGABRT", phase="running of instance blocks.2"))
    assert [fault.kind for fault in seen.faults_by_instance["blocks.2"]] == [Kind.CRASH]
    assert observation_from_death(Died(signal="SIGABRT", phase="comparing of instance blocks.2")).untested


def test_a_missed_deadline_is_a_timeout_at_the_stage_of_the_stack():
    (fault,) = observation_from_timeout(TimedOut(phase="dynamo", stack=STACK), 20.0).faults
    assert (fault.kind, fault.stage) == (Kind.TIMEOUT, Stage.DYNAMO)
    assert "20 s" in fault.message


def test_eager_mode_that_takes_too_long_is_no_fault_of_the_compiler():
    assert not observation_from_timeout(TimedOut(phase="comparing"), 20.0).faults
