"""Reduction: searches that propose something smaller and are sent whether the fault still shows."""
