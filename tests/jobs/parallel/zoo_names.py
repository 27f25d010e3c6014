"""The names of the models of `zoo`, for test files, which import no torch."""

from __future__ import annotations

OF_TRANSFORMERS = ("gpt2", "bert", "vit", "t5", "llama", "mixtral")
# Importing transformers takes most of its models' time; its Trainer trains GPT-2 in test_compat.
OURS = (
    *("mlp", "cut_off", "cnn", "unet", "lstm", "tied", "tied_in_glue", "reused", "dict_state", "two_towers"),
    *("shared_table", "experts", "data_dependent", "in_place", "dropout"),
)
ZOO = (*OURS, *OF_TRANSFORMERS)
# Special for a backward in two parts. In these it can be split ...
SPLIT = ("Odd", "Apart", "PartlyApart", "Branches", "Hooked", "FrozenOdd", "FrozenBefore")
# ... and in these not.
WHOLE = ("Again", "Checkpointed", "CheckpointedReentrant", "OnTheSide", "OwnFunction", "ModuleHooked", "Compiled")
ODD = (*SPLIT, *WHOLE)
