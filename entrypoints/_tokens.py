"""Tokenizers for models that are trained from scratch."""

from __future__ import annotations

from collections.abc import Iterable

from _common import World
from transformers import PreTrainedTokenizerFast

SPECIAL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]")


def new_tokenizer(texts: Iterable[str], size: int, length: int, world: World) -> PreTrainedTokenizerFast:
    """A tokenizer of words and parts of them, learnt from texts by rank 0, and sent to the others.

    size: most tokens it may have. length: of the longest text, in tokens.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    made = None
    if world.rank == 0:
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        pair = [(name, tokenizer.token_to_id(name)) for name in SPECIAL[2:]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=pair
        )
        made = tokenizer.to_str()
    unknown, pad, first, end = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(world.from_first(made)),
        unk_token=unknown,
        pad_token=pad,
        cls_token=first,
        sep_token=end,
        model_max_length=length,
    )
