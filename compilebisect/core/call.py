"""Under which switches of torch a golden call ran, so that every later run of it can set them again."""

from __future__ import annotations

from typing import Literal

import msgspec

GradMode = Literal["grad", "no_grad", "inference"]


class CallContext(msgspec.Struct, frozen=True):
    """Grad mode, enabled autocast (pairs of device type and dtype name) and the module's training flag."""

    grad_mode: GradMode = "no_grad"
    autocast: tuple[tuple[str, str], ...] = ()
    training: bool = False
