"""An output address that cannot be written to is told before anything trains."""

from __future__ import annotations

from typing import Any

import pytest

from support.own_s3 import BUCKET, client, keys, own_s3
from support.runner_project import Project
from trainshed.base.errors import TrainshedError
from trainshed.runner.files.fetching.s3 import check_output

SCRIPT = "import os\nopen(os.environ['MARK'], 'w').close()\nopen(os.environ['SM_MODEL_DIR'] + '/m', 'w').write('m')\n"


def test_a_wrong_bucket_ends_the_run_before_it_trains_and_a_right_one_gets_the_model(project: Project) -> None:
    project.write({"train.py": SCRIPT})
    mark = project.folder / "trained"
    with own_s3() as environment:
        variables = {**environment, "MARK": str(mark)}
        flags = ("run", "train.py", "--name", "a", "--env", f"MARK={mark}", "--output")
        done = project.trainshed(*flags, "s3://no-such-bucket/out", **variables)
        assert done.status == 1 and not mark.exists(), done.output
        assert "s3://no-such-bucket/out/a" in done.stderr and "NoSuchBucket" in done.stderr

        done = project.trainshed(*flags, f"s3://{BUCKET}/out", **variables)
        assert done.status == 0, done.output
        found = keys(environment, "out/")
        assert [name.rpartition("/")[2] for name in found] == ["model.tar.gz", "output.tar.gz"]
        begun: dict[str, Any] = client(environment).list_multipart_uploads(Bucket=BUCKET)
        assert not begun.get("Uploads"), "the check leaves nothing"


@pytest.mark.safety
def test_a_storage_that_cannot_be_reached_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(TrainshedError) as raised:
        check_output("s3://b/out", "a", {"AWS_ENDPOINT_URL_S3": "http://user:hunter2@127.0.0.1:1"})
    assert "s3://b/out/a" in raised.value.message and "hunter2" not in raised.value.message
