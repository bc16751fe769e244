"""Find out which module of a PyTorch model breaks torch.compile, and prove it."""

__version__ = "0.1.0"
