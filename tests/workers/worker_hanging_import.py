"""A module whose import hangs in C code, for `test_supervisor_death`."""

import ctypes

while True:
    ctypes.PyDLL(None).pause()
