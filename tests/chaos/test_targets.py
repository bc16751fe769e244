"""Targets that exit, hang, raise or want what the machine does not give: the reason in a sentence, 2 or 125."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.hostile import check_no_excuse, check_nothing_left, run_command

pytestmark = pytest.mark.slow
LONG = pytest.mark.chaos

HEAD = "import os, sys, time, torch\nfrom torch import nn\n"
NET = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {init}\n" + (
    "    def forward(self, x):\n        {forward}\n        return x\n"
)


def net(*, init: str = "pass", forward: str = "pass") -> str:
    return HEAD + NET.format(init=init, forward=forward)


TARGETS = {
    "no such name": (HEAD, 2, "there is no 'Net'"),
    "syntax error": (HEAD + "class Net(:\n", 2, "SyntaxError"),
    "import that exits": (HEAD + "sys.exit(0)\n", 2, "SystemExit"),
    "import that raises": (HEAD + "raise BaseException('mine')\n", 2, "mine"),
    "init that exits": (net(init="sys.exit(1)"), 125, "SystemExit"),
    "init that is interrupted": (net(init="raise KeyboardInterrupt"), 125, "KeyboardInterrupt"),
    "forward that is interrupted": (net(forward="raise KeyboardInterrupt"), 125, "KeyboardInterrupt"),
    "forward that stops a generator": (net(forward="raise GeneratorExit('mine')"), 125, "mine"),
    "forward that exits": (net(forward="sys.exit(1)"), 125, "SystemExit"),
    "forward that ends the process": (net(forward="os._exit(1)"), 125, "exit status 1"),
    "import that ends the process": (HEAD + "os._exit(0)\n", 125, "exit status 0"),
    "parameters without values": (net(init="self.layer = nn.Linear(4, 4, device='meta')"), 125, "meta"),
    "built only once": (
        net(init="open(os.path.join(os.path.dirname(__file__), 'only.lock'), 'x').close()"),
        125,
        "could be loaded once, and not again",
    ),
}
SHORT = ("import that exits", "forward that is interrupted", "parameters without values", "built only once")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SHORT else LONG) for name in TARGETS])
def test_a_target_that_cannot_be_tested_says_why(folder: Path, words: tuple[str, ...], name: str) -> None:
    text, status, said = TARGETS[name]
    (folder / "model.py").write_text(text)
    end = run_command(folder, *words)
    assert "itself failed" not in end.stderr and "compilebisect/runtime" not in end.stderr, end.said
    check_nothing_left(end)
    assert end.status == status and said in end.stderr, end.said


def test_a_target_that_hangs_is_named(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "model.py").write_text(HEAD + "while True:\n    time.sleep(1)\n")
    end = run_command(folder, *words, "--timeout", "1")
    check_no_excuse(end)
    check_nothing_left(end)
    assert end.status == 125 and "did not finish within 60 s; it was at" in end.stderr, end.said
    assert "model.py:4 in <module>" in end.stderr


@pytest.mark.parametrize(
    "limit",
    [
        "ulimit -n 20",
        *(pytest.param(text, marks=LONG) for text in ("ulimit -v 3000000", "ulimit -v 1000000", "ulimit -n 12")),
    ],
)
def test_a_limit_of_the_system_is_never_a_clean_run(folder: Path, words: tuple[str, ...], limit: str) -> None:
    end = run_command(folder, "model.py:Net", *words[1:], "--no-repro", before=limit)
    check_no_excuse(end)
    check_nothing_left(end)
    assert end.status in (1, 125), end.said
    assert end.status == 1 or "error: " in end.stderr
