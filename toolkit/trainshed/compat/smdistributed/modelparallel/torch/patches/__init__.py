"""Amazon's versions of PyTorch functions; PyTorch's own serve."""
