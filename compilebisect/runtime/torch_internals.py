"""The only importer of private torch names. Checked against torch 2.11, 2.13 and 2.15."""

from __future__ import annotations
