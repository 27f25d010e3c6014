"""A model store on S3: storages that do not know conditional writes, and none at all."""

from __future__ import annotations

from typing import Any

import pytest

from support.own_s3 import BUCKET
from trainshed.base.errors import TrainshedError
from trainshed.studio.models.in_s3 import InS3
from trainshed.studio.models.store import ModelStore

from .conftest import Maker


@pytest.fixture
def storage(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> InS3:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return InS3(f"s3://{BUCKET}/{tmp_path.name}", s3)


def test_of_two_that_create_one_object_the_first_wins(storage: InS3) -> None:
    assert [storage.create("a", b"one"), storage.create("a", b"two")] == [True, False]
    assert storage.read("a", 10) == b"one"


def test_a_try_whose_answer_was_lost_has_won_all_the_same(storage: InS3) -> None:
    storage.create("a", b"one")

    assert storage.create("a", b"one")


@pytest.mark.parametrize("how", ["ignored", "refused"])
def test_a_storage_without_conditional_writes_is_looked_at(
    storage: InS3, maker: Maker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    from botocore.exceptions import ClientError

    put = storage.client.put_object

    def put_object(**words: Any) -> Any:
        if words.pop("IfNoneMatch", "") and how == "refused":
            answer: Any = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}}
            raise ClientError(answer, "PutObject")
        return put(**words)

    monkeypatch.setattr(storage.client, "put_object", put_object)
    store = ModelStore(storage)

    assert [maker.add(store, "digits", text).number for text in ("one", "two", "one")] == [1, 2, 1]


def test_a_bucket_that_is_not_there_is_one_line(storage: InS3, s3: dict[str, str]) -> None:
    missing = ModelStore(InS3("s3://no-such-bucket-here/x", s3))
    with pytest.raises(TrainshedError, match=r"the model store s3://no-such-bucket-here/x: .*NoSuchBucket"):
        missing.models()
    with pytest.raises(TrainshedError, match="is not an S3 URI"):
        InS3("s3:///x", s3)
