"""A few of the faults of `mutations.py`, so that a change for the worse shows in every test run."""

from __future__ import annotations

import pytest
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config

from tests.quality.mutations import Case, Lab
from tests.quality.planted import Fault

# Dynamo looks at `.grad` of all inputs, also of those that are no leaves, as inside a model
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


@pytest.fixture(autouse=True)
def _config_stays_as_it_was():
    with (
        dynamo_config.patch(recompile_limit=8, accumulated_recompile_limit=256),
        inductor_config.patch(fallback_random=False),
    ):
        yield


SMALLEST = 4 * 16 * 2.0**-23


@pytest.mark.parametrize(
    ("case", "faults"),
    [
        (
            Case("StatefulNet", "float32", False, 0),
            [
                Fault("dynamo", "AddBias", "iadd", "dropped write"),
                Fault("dynamo", "RunningMean", "add_", "stale buffer"),
                Fault("forward", "Recorder", "mul", "one element", SMALLEST),
                # within the tolerance of the module, beyond that of the model around it
                Fault("forward", "Recorder", "select_scatter", "one element", 1e-5),
            ],
        ),
        (  # the first call's state is zeros, which hides the fault there
            Case("RecurrentNet", "float32", False, 0),
            [Fault("forward", "Cell", "rsub", "scaled", SMALLEST)],
        ),
        (
            Case("MlpNet", "float32", True, 0),
            [
                Fault("backward", "Up", "mm", "scaled", SMALLEST),
                Fault("forward", "MlpNet", "mul", "last row zeroed"),
            ],
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_planted_faults_are_found_at_their_module_and_healthy_models_stay_healthy(case, faults):
    lab = Lab(case)
    assert lab.false_alarms == {}
    for fault in faults:
        result = lab.plant(fault)
        assert result is not None, f"{fault} was not planted"
        assert result.found, f"{fault}: said {result.said}"
