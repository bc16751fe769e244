from __future__ import annotations

from pathlib import Path

import pytest

from compilebisect.workers import process_control
from compilebisect.workers.call_outcome import signal_name


@pytest.mark.parametrize("text", ["low 0\noom 4\noom_kill 2\n", "under_oom 0\noom_kill 2\n"])
def test_memory_kills_come_from_the_first_file_that_tells(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "absent", tmp_path / "silent", tmp_path / "memory.events", tmp_path / "vmstat"]
    files[1].write_text("oom_kill_disable 0\n")
    files[2].write_text(text)
    files[3].write_text("oom_kill 7\n")
    monkeypatch.setattr(process_control, "memory_event_files", lambda: files)
    assert process_control.memory_kills() == 2
    monkeypatch.setattr(process_control, "memory_event_files", lambda: files[:2])
    assert process_control.memory_kills() is None


def test_signals_without_a_name_are_numbered() -> None:
    assert signal_name(11) == "SIGSEGV"
    assert signal_name(40) == "SIG40"
