"""The sample models and what is expected of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

SAMPLES_DIR = Path(__file__).parents[2] / "sample_models"


class Sample(NamedTuple):
    """One folder of sample_models, with the content of its expected.json."""

    folder: Path
    expected: dict[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def needs_gpu(self) -> bool:
        return bool(self.expected.get("gpu", False))

    @property
    def target(self) -> tuple[Path, str]:
        """The model's file and the name in it."""
        file, _, name = self.expected["target"].rpartition(":")
        return self.folder / file, name

    @property
    def spec(self) -> Path:
        return self.folder / self.expected["input_spec"]

    @property
    def introducing(self) -> set[str]:
        """Paths of the modules that introduce a fault."""
        return {path for finding in self.expected["expect"] for path in (finding["module"], *finding["also_in"])}


def read_samples() -> list[Sample]:
    return [
        Sample(path.parent, json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(SAMPLES_DIR.glob("*/expected.json"))
    ]
