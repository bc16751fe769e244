from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def clean_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget what a test imports from its folder, so that all of them may call their files `model.py`."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__dict__", {}).get("__file__")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def torch_config() -> Iterator[None]:
    """Put back what a session changes in torch's config for the length of its process."""
    import torch._dynamo.config as dynamo_config
    import torch._inductor.config as inductor_config

    with (
        dynamo_config.patch(recompile_limit=8, accumulated_recompile_limit=256),
        inductor_config.patch(fallback_random=False),
    ):
        yield
