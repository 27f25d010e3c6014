"""Requirements that trainshed stands in for are left out of a requirements file; everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.container.program.requirements import STAND_INS, without


@pytest.mark.parametrize(
    "line",
    [
        "sagemaker-training",
        "sagemaker_training==5.1.4",
        "SageMaker.Training >= 4, < 6",
        "sagemaker-containers  # the old name",
        "sagemaker_containers[test]~=2.0 ; python_version > '3'",
        "sagemaker-training @ https://example.org/x.tar.gz",
        "sagemaker-training==5.1.4 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2",
    ],
)
def test_a_requirement_that_trainshed_stands_in_for_is_left_out_however_it_is_written(line: str) -> None:
    text, names = without(STAND_INS, f"numpy\n{line}\npandas\n", "/code")

    assert text == "numpy\npandas\n" and names in (("sagemaker-training",), ("sagemaker-containers",))


@pytest.mark.parametrize(
    "line",
    [
        "sagemaker",
        "sagemaker-training-extras",
        "sagemaker-pytorch-training",
        "# sagemaker-training",
        "./sagemaker-training",
        "--index-url https://example.org/sagemaker-training",
        "",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert without(STAND_INS, f"{line}\n", "/code") == (f"{line}\n", ())


def test_paths_in_options_still_lead_to_the_files_beside_the_original(tmp_path: Path) -> None:
    (tmp_path / "more.txt").touch()
    given = "-r more.txt\n--constraint=more.txt\n-cmore.txt\n-r absent.txt\n--find-links https://example.org/\n"

    text, _ = without(STAND_INS, given, str(tmp_path))

    assert text.splitlines() == [
        f"-r {tmp_path}/more.txt",
        f"--constraint={tmp_path}/more.txt",
        f"-c{tmp_path}/more.txt",
        "-r absent.txt",
        "--find-links https://example.org/",
    ]
