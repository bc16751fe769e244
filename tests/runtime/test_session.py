"""What a worker's process is set up for when a model is loaded in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from compilebisect.runtime.session import Session
from compilebisect.settings import Settings

HIDES_ERRORS = """
import torch
import torch._dynamo.config

torch._dynamo.config.suppress_errors = True

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
"""


@pytest.mark.parametrize(
    ("config", "are_hidden"), [((), False), ((("torch._dynamo.config.suppress_errors", True),), True)]
)
def test_a_models_file_does_not_hide_what_fails_in_the_compiler(
    clean_imports: None, tmp_path: Path, config: tuple[tuple[str, object], ...], are_hidden: bool
) -> None:
    (tmp_path / "hides_errors.py").write_text(HIDES_ERRORS)
    with torch._dynamo.config.patch(suppress_errors=False):
        Session(Settings(target=f"{tmp_path}/hides_errors.py:Net", spec={"input": [1, 2]}, device="cpu", config=config))
        assert torch._dynamo.config.suppress_errors is are_hidden
