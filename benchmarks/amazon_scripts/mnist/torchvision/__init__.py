"""Stands in for torchvision's data sets, without a download."""

__version__ = "0.28"
