"""The platform's built-in algorithms, by their images."""

from __future__ import annotations

import pytest

from support.paths import ROOT
from trainshed.algorithms import ENDING
from trainshed.algorithms.built_in import BUILT_IN, of_image


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:1.7-1", "XGBoost"),
        ("811284229777.dkr.ecr.us-east-1.amazonaws.com/xgboost:1", "XGBoost"),
        ("390948362332.dkr.ecr.cn-north-1.amazonaws.com.cn/kmeans", "K-Means"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/my-xgboost:1", None),
        ("registry.example.com/xgboost:1", None),
        ("xgboost", None),
    ],
)
def test_images_of_the_platforms_registries_alone_are_known(uri: str, name: str | None) -> None:
    found = of_image(uri)

    assert (found.name if found else None) == name


def test_each_names_a_program_that_there_is_or_what_else_to_use() -> None:
    programs = {path.name.removesuffix(ENDING) for path in (ROOT / "entrypoints").glob(f"*{ENDING}")}

    assert all(one.program in programs if one.program else one.instead for one in BUILT_IN)
    names = [name for one in BUILT_IN for name in one.repositories]
    assert len(names) == len(set(names))
