from __future__ import annotations

import pytest

from compilebisect.repro.wording import without_folders


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('File "/home/me/work/model.py", line 3', 'File "model.py", line 3'),
        ("in:/srv/data/x.pt", "in:x.pt"),
        ("C:\\Users\\me\\model.py failed", "model.py failed"),
        ("see https://example.org/gb/gb0124.html", "see https://example.org/gb/gb0124.html"),
        ("layers/0/weight", "layers/0/weight"),
    ],
)
def test_folders_of_a_machine_go_and_addresses_stay(text: str, shown: str) -> None:
    assert without_folders(text) == shown
