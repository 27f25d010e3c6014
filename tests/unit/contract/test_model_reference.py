"""References to versions, as people write them."""

from __future__ import annotations

import pytest

from trainshed.contract.model_reference import ModelReference, reference_of


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("digits", ModelReference("digits")),
        ("digits:12", ModelReference("digits", number=12)),
        ("model://digits@champion", ModelReference("digits", "champion")),
        ("a.b_c-1@stage-2", ModelReference("a.b_c-1", "stage-2")),
    ],
)
def test_what_is_meant(text: str, meant: ModelReference) -> None:
    assert reference_of(text) == meant and reference_of(str(meant)) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a valid model name"),
        ("../x", "not a valid model name"),
        ("model://a/b@champion", "not a valid model name"),
        ("digits:", "is not a version"),
        ("digits:0", "is not a version"),
        ("digits:1.5", "is not a version"),
        ("digits:champion", "is not a version"),
        ("digits@", "not a valid stage name"),
        ("digits@Champion", "not a valid stage name"),
        ("digits@a:1", "not a valid stage name"),
        ("digits@../x", "not a valid stage name"),
    ],
)
def test_what_is_not_a_reference(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        reference_of(text)
