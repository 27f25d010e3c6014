"""The names that the MNIST example uses: its data is made as it is to be seen."""


def Compose(parts: list) -> None:
    """Nothing is left to do."""


def ToTensor() -> None:
    """Nothing."""


def Normalize(mean: tuple, deviation: tuple) -> None:
    """Nothing."""
