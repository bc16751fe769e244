from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from compilebisect.core.report import report_from_json
from compilebisect.errors import UsageError
from compilebisect.search.report_folder import ReportFolder, write_whole
from tests.sample_reports import healthy_report, large_report

OUR_SCRIPT = (
    "# torch.compile: graph break: x\n#\n# Exit status: 1 the fault shows, 0 it does not, 125 this cannot be told.\n"
)
REPORT = json.dumps({"schema": "compilebisect-report/1", "findings": [{"repro": {"path": "repro_F7.py"}}]})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_only_what_the_old_report_lists_or_bears_our_head_is_removed(tmp_path: Path) -> None:
    theirs = {
        "repro_Fuzzy.txt": OUR_SCRIPT,
        "repro_F2.py": "print('mine')\n",
        "repro_F2.safetensors": "mine",
        "repro_F3.safetensors": "mine",
        "repro_of_mine.py": OUR_SCRIPT,
        "early_notes.md": "mine",
        "early_1.txt": "mine",
    }
    ours = {
        "repro_F1.py": OUR_SCRIPT,
        "repro_F1.safetensors": "",
        "repro_F7.py": "",
        ".early_2.py": OUR_SCRIPT,
        ".report.json.77.part": "",
    }
    for name, text in {**theirs, **ours, "report.json": REPORT}.items():
        (tmp_path / name).write_text(text)
    folder = ReportFolder(str(tmp_path))
    assert len(names(tmp_path)) == len(theirs) + len(ours) + 1  # nothing goes before the model has run
    folder.remove_old()
    assert names(tmp_path) == sorted([*theirs, "report.json"])


@pytest.mark.parametrize("listed", ["notes.py", "../repro_F1.py", "/etc/passwd", "repro_F1.txt", 3, None])
def test_a_report_cannot_make_us_remove_what_we_never_write(tmp_path: Path, listed: object) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for path in (tmp_path / "repro_F1.py", out / "notes.py", out / "repro_F1.txt"):
        path.write_text("mine")
    (out / "report.json").write_text(
        json.dumps({"schema": "compilebisect-report/1", "findings": [{"repro": {"path": listed}}, 3, {"repro": []}]})
    )
    ReportFolder(str(out)).remove_old()
    assert names(out) == ["notes.py", "report.json", "repro_F1.txt"] and (tmp_path / "repro_F1.py").exists()


@pytest.mark.parametrize("text", ["", "{}", "[1]", "null", '{"schema": "sarif"}', "\x00\x01", "[" * 100_000])
def test_a_foreign_report_is_refused_and_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(UsageError, match="was not written by compilebisect") as caught:
        ReportFolder(str(tmp_path))
    assert caught.value.exit_status == 2 and (tmp_path / "report.json").read_text() == text


def test_a_report_that_is_a_link_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "report.json").mkdir(parents=True)
    with pytest.raises(UsageError, match="is a folder"):
        ReportFolder(str(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UsageError, match="is a link"):
        ReportFolder(str(tmp_path / "b"))
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "report.json")
    with pytest.raises(UsageError, match="is no plain file"):
        ReportFolder(str(tmp_path / "c"))


def test_a_report_that_was_made_read_only_is_kept(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(REPORT)
    (tmp_path / "report.json").chmod(0o444)
    with pytest.raises(UsageError, match="is read-only"):
        ReportFolder(str(tmp_path))


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/none", "a\0b"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="the folder for the results cannot be"):
        ReportFolder(str(tmp_path / name))


def test_scripts_linked_into_the_folder_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OUR_SCRIPT)
    out = tmp_path / "out"
    out.mkdir()
    (out / "repro_F1.py").symlink_to(tmp_path / "mine.py")
    ReportFolder(str(out)).remove_old()
    assert (out / "repro_F1.py").is_symlink()


def test_a_name_that_the_user_has_is_not_taken(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path))
    assert folder.free_stem("repro_F1") == "repro_F1"
    (tmp_path / "repro_F1.safetensors").touch()
    (tmp_path / "repro_F1_2.py").symlink_to("nowhere")
    assert folder.free_stem("repro_F1") == "repro_F1_3"


def test_a_report_takes_the_place_of_the_last_one_as_a_whole(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path / "new" / "folder"))
    folder.write(large_report())
    folder.write(healthy_report())
    assert report_from_json((folder.path / "report.json").read_bytes()) == healthy_report()
    assert names(folder.path) == ["report.json"]


def test_a_write_that_fails_leaves_the_file_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"before")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"after")
    assert path.read_bytes() == b"before" and names(tmp_path) == ["report.json"]
