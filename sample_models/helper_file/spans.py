"""Turns token ids into spans of words."""

import torch


def padded_spans(lengths, longest):
    """Mask (batch, longest) that is true inside each sequence."""
    rows = [torch.arange(longest) < length for length in lengths.tolist()]
    return torch.stack(rows).to(lengths.device)
