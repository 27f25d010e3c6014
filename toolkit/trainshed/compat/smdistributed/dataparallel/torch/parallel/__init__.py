"""Version 1's DistributedDataParallel."""

from .distributed import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
