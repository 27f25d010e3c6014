"""Stands in for `datasets.load_from_disk`: rows of words of which each follows from the one before."""

LENGTH, WORDS = 16, 64


def load_from_disk(_folder: str) -> dict[str, list[dict[str, list[int]]]]:
    """Rows for training and for validation."""

    def row(first: int) -> dict[str, list[int]]:
        words = [(first + 3 * place) % WORDS for place in range(LENGTH)]
        return {"input_ids": words, "attention_mask": [1] * LENGTH, "labels": words}

    return {"train": [row(first) for first in range(64)], "validation": [row(first) for first in range(16)]}
