"""Run every golden repro script with some interpreters and print what each says.

    python tests/quality/old_and_new_torch.py /path/to/old/bin/python /path/to/new/bin/python

The scripts need torch alone, so the interpreters need nothing else. `shown` and `gone` are both fine, since a fault may
be fixed in another version; a script that cannot tell is not. Exits 1 where one cannot.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "repro" / "golden"
WORDS = {0: "gone", 1: "shown"}
TIMEOUT_S = 300


def verdict_of(python: str, script: Path) -> tuple[str, str]:
    """Run a script; returns `shown`, `gone` or `cannot tell`, and the line that it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TORCH"))}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(script.parent / "cache")
    try:
        ended = subprocess.run(
            [python, str(script)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "cannot tell", f"no end after {TIMEOUT_S} s"
    lines = [line for line in ended.stdout.splitlines() if re.match(r"FAULT|CANNOT TELL", line)]
    return WORDS.get(ended.returncode, "cannot tell"), lines[-1] if lines else ended.stderr[-500:]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    pythons = parser.parse_args().pythons
    versions = [
        subprocess.run(
            [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for python in pythons
    ]
    print(f"| script | {' | '.join(versions)} |\n| --- |{' --- |' * len(pythons)}", flush=True)
    unclear: list[str] = []
    for text in sorted(GOLDEN.glob("*.py.txt")):
        words = []
        for python, version in zip(pythons, versions, strict=True):
            with tempfile.TemporaryDirectory(prefix="compilebisect-golden-") as folder:
                script = Path(folder) / text.name.removesuffix(".txt")
                script.write_text(text.read_text(encoding="utf-8"), encoding="utf-8")
                word, line = verdict_of(python, script)
            words.append(word)
            if word == "cannot tell":
                unclear.append(f"{text.name} with torch {version}: {line}")
        print(f"| {text.name.removesuffix('.py.txt')} | {' | '.join(words)} |", flush=True)
    if unclear:
        print("\n" + "\n".join(unclear))
    return 1 if unclear else 0


if __name__ == "__main__":
    sys.exit(main())
