"""Errors of a channel's data: the public name of `formats.errors`."""

from .formats.errors import DataError, SampleError, broken, damaged, placed

__all__ = ["DataError", "SampleError", "broken", "damaged", "placed"]
