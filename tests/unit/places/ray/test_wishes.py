"""The mapping `ray` of a job."""

from __future__ import annotations

from typing import Any

import pytest

from trainshed.base.errors import JobError
from trainshed.places.ray.wishes import read_options, with_address
from trainshed.runner.job.job import ChannelSpec, DistributionSpec, Job


def job(**ray: Any) -> Job:
    """A job with such a mapping."""
    return Job("job", places={"ray": ray})


def test_an_address_comes_from_the_command_then_the_job_then_the_environment() -> None:
    environ = {"RAY_ADDRESS": "head:3"}
    assert read_options(with_address(job(address="head:2"), "ray://head:1"), environ).address == "ray://head:1"
    assert read_options(with_address(job(address="head:2"), ""), environ).address == "head:2"
    assert read_options(job(), environ).address == "head:3"
    assert read_options(job(), {}).address == "auto"


WRONG = [
    (job(adress="head:1"), "is not a known field"),
    (job(address="head"), "must be HOST:PORT, ray://HOST:PORT or auto"),
    (job(address="head:²"), "must be HOST:PORT, ray://HOST:PORT or auto"),
    (job(address="http://head:1/"), "must be HOST:PORT"),
    (job(address="head:99999"), "must be HOST:PORT"),
    (job(placement="spred"), "must be one of auto, strict_spread"),
    (job(resources={"GPU": 1}), "is Ray's own"),
    (job(resources={"tpu": 0}), "must be a number above 0"),
    (job(shared=["data"]), "must be absolute"),
    (job(shared="/data"), "must be a list"),
    (job(folder="scratch"), "must be absolute"),
    (job(wait_seconds=-1), "must be a number of seconds"),
    (job(autoscaling="yes"), "must be true or false"),
    (Job("job", channels=(ChannelSpec("train", "/data", input_mode="Pipe"),)), "Pipe mode does not work on Ray"),
    (Job("job", instances=2, distribution=DistributionSpec("mpi")), "mpirun cannot reach the other hosts on Ray"),
]


@pytest.mark.parametrize("job, words", WRONG, ids=[words for _, words in WRONG])
def test_what_cannot_be_is_refused(job: Job, words: str) -> None:
    with pytest.raises(JobError, match=words.replace("(", r"\(")):
        read_options(job, {})


def test_a_shared_folder_is_seen_and_what_only_begins_like_it_is_not() -> None:
    options = read_options(job(shared=["/data/"]), {})
    assert options.sees("/data") and options.sees("/data/a/b")
    assert not options.sees("/data2") and not options.sees("/data/../etc")
