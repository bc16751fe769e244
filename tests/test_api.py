from __future__ import annotations

from pathlib import Path

from compilebisect.api import _output_folder


def test_what_an_earlier_run_left_goes_and_other_files_stay(tmp_path: Path) -> None:
    theirs = ["notes.txt", "repro_of_mine.py"]
    for name in ("report.json", "repro_F1.py", "repro_F1.safetensors", "early_2.py", *theirs):
        (tmp_path / name).touch()
    _output_folder(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == theirs


def test_a_folder_that_holds_no_report_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "repro_F1.py").touch()
    _output_folder(str(tmp_path / "new"))
    _output_folder(str(tmp_path))
    assert (tmp_path / "repro_F1.py").exists() and (tmp_path / "new").is_dir()
