from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from compilebisect import scratch_folder as module
from compilebisect.scratch_folder import scratch_folder, sweep_temporary

LONG_AGO = 1_000_000_000


def age(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        os.utime(path, (LONG_AGO, LONG_AGO))


def test_folders_of_dead_runs_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead, lock = scratch_folder(tmp_path)
    (dead / "golden").mkdir()
    lock.close()  # as the kernel does when the process ends
    living, lock_of_living = scratch_folder(tmp_path)
    assert not dead.exists()
    age(living)
    own, lock_of_own = scratch_folder(tmp_path)
    assert living.exists() and own.exists()
    lock_of_living.close()
    lock_of_own.close()


def test_folders_of_other_machines_go_only_when_they_are_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_machine", lambda: "elsewhere\n")
        other, lock = scratch_folder(tmp_path)
    lock.close()
    scratch_folder(tmp_path)[1].close()
    assert other.exists()
    age(other)
    scratch_folder(tmp_path)[1].close()
    assert not other.exists()


def test_a_folder_without_a_lock_goes_only_when_it_is_old(tmp_path: Path) -> None:
    (tmp_path / "scratch-old").mkdir()
    scratch_folder(tmp_path)[1].close()
    assert (tmp_path / "scratch-old").exists()
    age(tmp_path / "scratch-old")
    scratch_folder(tmp_path)[1].close()
    assert not (tmp_path / "scratch-old").exists()


def test_what_is_no_folder_of_ours_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    age(elsewhere)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "scratch-link").symlink_to(elsewhere)
    (cache / "scratch-file").touch()
    (cache / "torch-2.13").mkdir()
    scratch_folder(cache)[1].close()
    assert {"scratch-link", "scratch-file", "torch-2.13"} <= {path.name for path in cache.iterdir()}
    assert elsewhere.exists()


def test_without_locks_there_is_a_folder_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(37, "No locks available")

    first, lock = scratch_folder(tmp_path)
    lock.close()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    second, lock = scratch_folder(tmp_path)
    lock.close()
    assert first.exists() and second.exists()


def test_old_files_of_killed_scripts_go_and_the_cache_of_torch_stays(tmp_path: Path) -> None:
    for name in ("tmpabc", "torchinductor_me", "tmpnew"):
        (tmp_path / name).mkdir()
    for name in ("tmpabc", "torchinductor_me"):
        age(tmp_path / name)
    sweep_temporary(tmp_path)
    sweep_temporary(tmp_path / "absent")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmpnew", "torchinductor_me"]
