"""Helpers for calling functions with the values of a job."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable
from typing import Any

from . import mapping

ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(fn: Callable[..., Any]) -> ArgSpec:
    """Names and defaults of a function's arguments."""
    spec = inspect.getfullargspec(fn)
    return ArgSpec(spec.args, spec.varargs, spec.varkw, spec.defaults)


def matching_args(fn: Callable[..., Any], dictionary: Any) -> Any:
    """The items of a dictionary that a function takes; all of them if it takes keywords."""
    spec = getargspec(fn)
    return dictionary if spec.keywords else mapping.split_by_criteria(dictionary, spec.args).included


def error_wrapper(fn: Callable[..., Any], error_class: type[Exception]) -> Callable[..., Any]:
    """Wraps `fn`; its exceptions are converted to another class."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise error_class(error).with_traceback(error.__traceback__) from None

    return wrapper
