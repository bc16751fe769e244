"""Pure logic: no torch, no I/O, no clock, no printing."""
