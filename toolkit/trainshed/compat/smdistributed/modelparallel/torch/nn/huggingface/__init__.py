"""Functions that translate states between transformers' names and those of Amazon's tensor parallel modules.

No module is replaced here, so a state has transformers' names already: every translation gives back what it was given.
"""

from . import bert, gpt2, gptj, gptneo, gptneox, roberta, t5, vit

__all__ = ["bert", "gpt2", "gptj", "gptneo", "gptneox", "roberta", "t5", "vit"]
