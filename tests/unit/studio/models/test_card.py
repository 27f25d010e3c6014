"""The model card: what it says, and what it does with other people's text."""

from __future__ import annotations

import yaml

from trainshed.studio.models.card import card
from trainshed.studio.models.version import File, Version, VersionMetadata

RUN = {
    "name": "digits-1",
    "status": "Completed",
    "program": "train.py",
    "hyperparameters": {"lr": "0.1", "note": "a|b\n# evil"},
    "channels": {"train": "s3://bucket/data"},
    "data": {"train": {"algo-1": {"digest": "sampled:0123"}}},
}


def version(**facts: object) -> Version:
    return Version("digits", 3, 0.0, "x", (File("a|b", 3, "0" * 64),), VersionMetadata(**facts))  # type: ignore[arg-type]


def test_a_card_has_a_head_that_the_hub_reads_and_all_sections() -> None:
    text = card(version(metrics={"loss": 0.25}, run=RUN, licence="MIT"), stages=["champion"], tags={"owner": "ann"})
    head = yaml.safe_load(text.split("---\n")[1])

    assert head == {"license": "mit", "tags": ["trainshed", "owner"], "metrics": ["loss"]}
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert titles[0] == "# digits, version 3" and "## Data" in titles and "## Licence" in titles
    assert "| loss | 0.25 |" in text and "| train | s3://bucket/data | sampled:0123 |" in text
    assert "It is champion." in text and "trainshed models get digits:3 FOLDER" in text


def test_another_licence_is_named_so() -> None:
    head = yaml.safe_load(card(version(licence="Ours: all\nrights")).split("---\n")[1])

    assert head["license"] == "other" and head["license_name"] == "Ours: all\\nrights"


def test_texts_of_others_make_neither_rows_nor_headings_nor_tags() -> None:
    text = card(version(run=RUN, licence="<script>"), note="# not a heading\n---\n[x](y)")

    assert "| note | a\\|b\\\\n\\# evil |" in text
    assert "\n# evil" not in text and "<script>" not in text.split("---", 2)[2] and "\n\\# not a heading" in text


def test_damaged_facts_make_a_card_all_the_same() -> None:
    text = card(version(run={"hyperparameters": 3, "channels": [1], "data": {"a": [1], "b": {"h": 2}}, "name": {}}))

    assert "## How it was made" in text
