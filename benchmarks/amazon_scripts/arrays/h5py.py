"""Stands in for h5py where a script only reads arrays: the files are numpy's archives."""

import numpy


class File(dict):
    """The arrays of a file by name."""

    def __init__(self, path: str, mode: str = "r") -> None:
        super().__init__(numpy.load(path))

    def close(self) -> None:
        """Nothing is open."""
