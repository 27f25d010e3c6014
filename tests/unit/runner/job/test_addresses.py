"""Addresses of channels."""

from __future__ import annotations

import pytest

from trainshed.runner.job.addresses import is_elsewhere, without_secrets, wrong_with


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket",
        "s3://bucket/a b",
        "gs://bucket/x",
        "rclone://mine/x",
        "https://host/a.tar",
        "http://host:8080/a?id=1",
        "hf://datasets/me/words",
        "hf://datasets/me/wo.rds@v1/part/a",
    ],
)
def test_good_ones(address: str) -> None:
    assert is_elsewhere(address) and wrong_with(address) == ("", "")


@pytest.mark.parametrize(
    ("address", "problem", "hint"),
    [
        ("rclon://x/y", "cannot be fetched", "did you mean 'rclone'? known are s3://, gs://"),
        ("ftp://host/x", "cannot be fetched", "known are s3://"),
        ("s3://B", "is not an S3 URI", "s3://bucket/prefix"),
        ("hf://me/words", "does not name a dataset", "hf://datasets/OWNER/NAME"),
        ("gs://", "names nothing", "gs://bucket/prefix"),
        ("https://host/", "is a folder, which HTTP cannot list", "ManifestFile"),
        ("https://host", "is a folder", ""),
        ("https://me:secret@host/x", "holds a login", "~/.netrc"),
        ("https://host:port/x", "is not a URL", ""),
        ("https://host/x?X-Amz-Signature=1", "holds a signature or a secret", "s3://"),
        ("https://host/x?api_key=1", "holds a signature or a secret", ""),
    ],
)
def test_bad_ones_are_refused_in_words(address: str, problem: str, hint: str) -> None:
    said, remedy = wrong_with(address)
    assert said.startswith(problem) and hint in remedy, (said, remedy)
    assert "secret@" not in said + remedy


@pytest.mark.safety
def test_messages_hold_no_secret() -> None:
    assert without_secrets("https://me:p@ss@host:1/a/b?sig=1") == "https://host:1/a/b"
    assert without_secrets("ftp://me@host") == "ftp://host"


@pytest.mark.parametrize("path", ["/data/a://b", "data", "file:///data", "/data"])
def test_paths_are_here(path: str) -> None:
    assert not is_elsewhere(path)
