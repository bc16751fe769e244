"""Imports that every worker needs, made once in the fork server. Nothing here may touch a GPU."""

from __future__ import annotations

import contextlib

import compilebisect.runtime.service  # noqa: F401 - the handlers, and with them all of the runtime
from compilebisect.runtime.torch_internals import import_compiler

import_compiler()
with contextlib.suppress(ImportError):  # absent from CPU builds of torch
    from triton.runtime.cache import triton_key

    triton_key()  # a hash of all its files, kept from then on
