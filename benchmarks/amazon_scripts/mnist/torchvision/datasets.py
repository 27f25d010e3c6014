"""Made data in the form of MNIST: each digit is a bar at a place of its own."""

import torch
from torch.utils.data import Dataset


class MNIST(Dataset):
    """Images of shape (1, 28, 28) and digits."""

    def __init__(self, _folder: str, train: bool, download: bool = False, transform: object = None) -> None:
        self.count, self.first = (512, 0) if train else (128, 10**6)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        digit = (7 * index) % 10
        image = 0.3 * torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(self.first + index))
        image[0, 2 * digit : 2 * digit + 6] += 1.0
        return image, digit


class ImageFolder(Dataset):
    """Ninety-six images of shape (3, 32, 32) in ten classes, whatever the folder."""

    def __init__(self, _folder: str, transform: object = None) -> None:
        self.images = torch.randn(96, 3, 32, 32, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index].clone()
        image[index % 3] += index % 10
        return image, index % 10
