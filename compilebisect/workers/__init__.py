"""Processes that may crash or hang, and the supervisor that survives them. Knows nothing of torch or of modules."""
