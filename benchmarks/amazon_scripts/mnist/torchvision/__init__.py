"""Stands in for torchvision's data sets, without a download."""
