"""trainshed turns any container image into a training image. See README.md and docs/."""

__version__ = "0.2.0.dev0"
