"""Parts of a data set."""

from torch.utils.data import Dataset


class SplitDataset(Dataset):
    """One of equal parts of a data set; `select` says which."""

    def __init__(self, whole: Dataset, partitions: dict[str, float]) -> None:
        self.whole, self.count, self.number = whole, len(partitions), 0

    def select(self, name: str) -> None:
        """Takes the part with this number."""
        self.number = int(name)

    def __len__(self) -> int:
        return len(self.whole) // self.count

    def __getitem__(self, index: int) -> tuple:
        return self.whole[self.number * len(self) + index]
