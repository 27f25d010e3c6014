"""Functions that translate states between transformers' names and those of Amazon's tensor parallel modules.

No module is replaced here, so a state has transformers' names already: every translation gives back what it was given. The
modules `bert`, `gpt2` and so on differ in nothing but their names, and are made here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .....unserved import UnservedName

_ARCHITECTURES = ("bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta", "t5", "vit")


class _Translations(ModuleType):
    """The translations of one architecture, by their names.

    Raises:
        UnservedName: for another name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package: importing another name from it asks the finder, which says why it is not there

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if not name.startswith("translate_"):
            raise UnservedName(f"{self.__name__}.{name} is not supported", hint="only the functions translate_... are there")
        return _same


def _same(state: Any, *_args: Any, **_kwargs: Any) -> Any:
    """The state itself; lengths and the like have no effect."""
    return state


for _name in _ARCHITECTURES:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _Translations(f"{__name__}.{_name}")
