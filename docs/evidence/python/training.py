"""The function of the five tasks."""


def train(lr: float, steps: int = 20) -> None:
    """Finds the number 3, slowly."""
    weight = 0.0
    for step in range(int(steps)):
        print(f"metric loss={(weight - 3) ** 2:.6f} step={step}", flush=True)
        weight -= float(lr) * 2 * (weight - 3)
