"""Effects of torch; runs inside worker processes."""
