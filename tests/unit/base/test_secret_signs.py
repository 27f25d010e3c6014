"""The quick look for secrets finds a sign wherever `secret_shapes` could find a secret."""

from __future__ import annotations

import pytest

from trainshed.base import secret_shapes, secret_signs, secrets
from trainshed.base.secret_words import is_secret_name

RUN = "x" * 18


def test_what_stands_before_a_secret_is_a_sign_where_the_secret_is_long() -> None:
    examples = {
        "=": ("&code=", "&x-amz-signature=", "?sign=", "&api_key=", ";sig=", "&x-goog-security-token="),
        "wandb": ("wandb key:",),
        "identified": ("identified by",),
        "/t/": ("://host/t/",),
        "(": ("connect('me', '", "HTTPBasicAuth('me', '", "logIn('me', '"),
        "$": ("$6$aB3dE5fG7hI9jK1lM3nO5",),
    }
    for sign, _ in secret_shapes._AFTER:
        for text in examples.get(sign, (sign,)):
            assert secret_signs.has_signs(f"{text} {RUN}"), text


def test_names_that_most_environments_have_are_judged_as_the_expressions_judge_them() -> None:
    assert {name: is_secret_name(name) for name in secrets._JUDGED} == secrets._JUDGED


def test_plain_texts_have_no_signs() -> None:
    for text in ("homogeneousCluster", "sampled:e59c64b92062f192f70829467055677a", "loss 0.5 step 12", "-" * 40):
        assert not secret_signs.has_signs(text)


@pytest.mark.safety
@pytest.mark.parametrize(
    "line",
    [
        "curl -b session=abcdefghijklmnopqrst1 x",
        "got ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8 from it",
        "pg:5432:db:me:hunter22 in .pgpass",
        "GET https://host/api?code=abcdefgh12345678",
        "http -a me:hunter22 https://host/api",
        "https://me:hunter22@host/",
        "Authorization: Bearer a1B2c3D4e5F6g7H8i9J0",
    ],
)
def test_among_thousands_of_lines_that_are_alike_a_secret_is_masked(line: str) -> None:
    noise = "".join(f"step {step} loss 0.{step} of homogeneousCluster\n" for step in range(2000))
    shown = secrets.mask_bytes(f"{noise}{line}\n{noise}".encode(), ()).decode()

    assert shown == f"{noise}{secrets.mask_text(line)}\n{noise}" and secrets.MASK in shown
