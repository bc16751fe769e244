"""What every sample model promises, checked without the command: a tree of some depth that runs in eager mode."""

from __future__ import annotations

import importlib.util
import re
import sys
import types
from collections.abc import Iterator

import pytest

from .sample import SAMPLES_DIR, Sample, read_samples

SAMPLES = read_samples()
KEYS = {"about", "target", "input_spec", "args", "gpu", "exit", "expect", "clean"}
FINDING_KEYS = {
    "kind", "module", "also_in", "file", "code", "stage", "accept_stages", "line_optional", "region",
    "hidden_behind",
}  # fmt: skip


def ids(sample: Sample) -> str:
    return sample.name


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A function that imports a sample's file; its siblings are forgotten afterwards."""
    known = set(sys.modules)

    def load_sample(sample: Sample) -> types.ModuleType:
        monkeypatch.syspath_prepend(str(sample.folder))
        spec = importlib.util.spec_from_file_location(f"sample_{sample.name}", sample.target[0])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load_sample
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file and str(SAMPLES_DIR) in file:
            del sys.modules[name]


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_expectations_are_well_formed(sample: Sample) -> None:
    assert sample.expected.keys() <= KEYS
    assert (sample.expected["exit"] == 1) == bool(sample.expected["expect"])
    for finding in sample.expected["expect"]:
        assert finding.keys() <= FINDING_KEYS
        if "code" in finding:
            source = (sample.folder / finding["file"]).read_text(encoding="utf-8")
            assert source.count(finding["code"]) == 1, "the code of a fault names one line"
    assert sample.introducing.isdisjoint(sample.expected["clean"])


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_model_is_built_on_a_machine_without_a_gpu_and_has_the_named_modules(sample: Sample, load) -> None:
    model = getattr(load(sample), sample.target[1])()
    paths = [path for path, _ in model.named_modules()]
    assert len(paths) >= 10
    assert sample.introducing <= set(paths)
    assert set(sample.expected["clean"]) <= set(paths)
    depths = [path.count(".") + 1 for path in sample.introducing]
    assert all(depth >= 2 for depth in depths), "the fault lies deep inside"


def test_readme_lists_every_sample_with_its_exit_status() -> None:
    text = (SAMPLES_DIR / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`( \(GPU\))? \| (\d) \|", text, flags=re.MULTILINE)
    listed = {name: (bool(gpu), int(status)) for name, gpu, status in rows}
    assert listed == {sample.name: (sample.needs_gpu, sample.expected["exit"]) for sample in SAMPLES}
