"""The former name of `tensor_folder`."""

from .tensor_folder import Saved, load, prune, save

__all__ = ["Saved", "load", "prune", "save"]
