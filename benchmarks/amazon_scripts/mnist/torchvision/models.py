"""Small models under the names of large ones."""

from torch import Tensor, nn


class _Small(nn.Module):
    """As deep as it needs to be for buffers, convolutions and a thousand classes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.fc = nn.Linear(32, 1000)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.body(images).flatten(1))


def resnet50() -> nn.Module:
    """Anything but fifty layers."""
    return _Small()


VGG16_Weights = alexnet = squeezenet1_1 = vgg16 = None  # torchmetrics, which Lightning has, asks for the names
