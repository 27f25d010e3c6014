"""Stands in for torchnet's one class that the MNIST example uses."""
