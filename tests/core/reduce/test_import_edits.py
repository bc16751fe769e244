from __future__ import annotations

from compilebisect.core.reduce.import_edits import without_short_names
from compilebisect.core.reduce.script_text import ScriptText


def spelled(text: str, *keep: str, frozen: str = "none") -> str:
    return without_short_names(
        ScriptText(text, lambda statement: getattr(statement, "name", "") == frozen, frozenset(keep))
    )


def test_short_names_of_torch_are_spelled_out():
    text = "import torch\nimport torch.nn as nn\nfrom torch.nn import functional as F\n\nx = F.relu(nn.Linear(2, 2))\n"
    assert spelled(text) == "import torch\n\nx = torch.nn.functional.relu(torch.nn.Linear(2, 2))\n"


def test_other_imports_stay():
    text = "import torch\nimport numpy as np\nfrom torch.utils import data\n\nx = np.zeros(2)\ny = data\n"
    assert spelled(text) == text


def test_names_that_lines_to_keep_and_frozen_code_read_stay():
    text = "import torch\nfrom torch import nn\n\nx = nn.Linear(2, 2)\n\ndef run():\n    return nn\n"
    assert spelled(text, "x = nn.Linear(2, 2)") == text
    assert spelled(text, frozen="run") == text
    assert "torch.nn.Linear" in spelled(text)


def test_names_within_formatted_strings_stay():
    text = 'import torch\nfrom torch import nn\n\nx = f"{nn}"\n'
    assert spelled(text) == text
