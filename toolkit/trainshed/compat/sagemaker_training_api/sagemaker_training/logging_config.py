"""The toolkit's logger."""

from __future__ import annotations

import logging


def get_logger() -> logging.Logger:
    """The logger `sagemaker-training-toolkit`."""
    return logging.getLogger("sagemaker-training-toolkit")


def configure_logger(level: int, log_format: str = "%(asctime)s %(name)-12s %(levelname)-8s %(message)s") -> None:
    """Sets the root logger's level and format; keeps S3's client quiet."""
    logging.basicConfig(format=log_format, level=level)
    if level >= logging.INFO:
        for name in ("boto3", "s3transfer", "botocore"):
            logging.getLogger(name).setLevel(level)
