"""Imports that every worker needs, made once in the fork server. Nothing here may touch a GPU."""

from __future__ import annotations

import contextlib

import torch._dynamo  # noqa: F401
import torch._inductor.compile_fx  # noqa: F401

import compilebisect.runtime.service  # noqa: F401

with contextlib.suppress(ImportError):
    import triton  # noqa: F401
