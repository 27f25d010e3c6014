"""Amazon's data parallel library, both its interfaces, served by torch.distributed on CPUs and GPUs."""

__version__ = "1.4.0"  # the last one that had both
