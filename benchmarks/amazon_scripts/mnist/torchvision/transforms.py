"""The names that the examples use: their data is made as it is to be seen."""


def Compose(parts: list) -> None:
    """Nothing is left to do."""


def ToTensor() -> None:
    """Nothing."""


def Normalize(mean: object, std: object) -> None:
    """Nothing."""


def RandomResizedCrop(size: int) -> None:
    """Nothing."""


def RandomHorizontalFlip() -> None:
    """Nothing."""


def Resize(size: int) -> None:
    """Nothing."""


def CenterCrop(size: int) -> None:
    """Nothing."""
