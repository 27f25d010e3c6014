"""What a pipeline's file means, and everything that can be wrong with it, said at once and with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.base.errors import JobError
from trainshed.studio.steps.steps_file import read_pipeline
from trainshed.studio.steps.steps_plan import PipelineDefinition

GOOD = """\
params:
  epochs: 3
steps:
  train:
    run:
      program: train.py
      hyperparameters:
        epochs: ${params.epochs}
        name: run-${params.epochs}
        home: ${HOME}
      channels:
        data: ${steps.prepare.model}
  prepare:
    run: job.yaml
  good:
    condition: ${steps.train.metrics.loss} < 0.5 and not ${steps.train.metrics.acc} < 0.1
  keep:
    when: good
    register: {model: digits, from: train, stage: [champion, newest]}
"""
# With a search.
TUNES = """\
steps:
  prepare:
    run: job.yaml
  search:
    tune:
      job:
        program: train.py
        hyperparameters: {step: search}
        channels:
          data: ${steps.prepare.model}
      search: {add: [1, 5, 3]}
      strategy: grid
      objective: maximize total
  keep:
    register: {model: digits, from: search}
"""


def read(folder: Path, text: str, **given: str) -> PipelineDefinition:
    (folder / "train.py").touch()
    (folder / "job.yaml").write_text("program: train.py\n")
    (folder / "pipeline.yaml").write_text(text)
    return read_pipeline(str(folder / "pipeline.yaml"), {}, given)


def lines(folder: Path, text: str, **given: str) -> list[str]:
    """The problems, without the path of the file."""
    with pytest.raises(JobError) as caught:
        read(folder, text, **given)
    return [problem.line().replace(f"{folder}/", "") for problem in caught.value.problems]


def test_steps_are_in_the_order_in_which_they_can_run(tmp_path: Path) -> None:
    made = read(tmp_path, GOOD)

    assert [step.name for step in made.steps] == ["prepare", "train", "good", "keep"]
    assert {step.name: step.needs for step in made.steps} == {
        "prepare": (), "train": ("prepare",), "good": ("train",), "keep": ("train", "good"),
    }  # fmt: skip
    assert made.name == "pipeline" and made.below("train") == {"train", "good", "keep"}


def test_a_parameter_is_taken_from_the_command_line_with_its_type(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD, epochs="7").params["epochs"].value == 7


@pytest.mark.safety
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("${params.epochs}\n", "${params.epoch}\n", "pipeline.yaml:8: steps.train = ${params.epoch}: is not a parameter"),
        ("${params.epochs}\n", "${param.epochs}\n", "did you mean 'params'?"),
        ("steps.prepare.model", "steps.prepar.model", "is a link to a step that does not exist (did you mean 'prepare'?)"),
        ("steps.prepare.model", "steps.prepare.modell", "is not a link (did you mean 'model'?)"),
        ("steps.prepare.model", "steps.train.model", "is a link of a step to itself"),
        ("steps.prepare.model", "steps.good.model", "so it has no values: use `when`"),
        ("steps.prepare.model", "steps.prepare.version", "has `run`, so it has no version"),
        ("when: good", "when: god", "is not a step (did you mean 'good'?)"),
        ("when: good", "when: train", "is not a step with `condition`"),
        ("from: train", "from: good", "is not a step with `run` or `tune`"),
        ("model: digits", "model: ../x", "is not a valid model name"),
        ("[champion, newest]", "Best", "is not a valid stage name"),
        ("from: train,", "", "has no `from`"),
        ("< 0.5 and", "< 0.5 xor", "goes on after its end at 'xor'"),
        ("< 0.5 and", "and", "must compare values"),
        ("  prepare:\n    run: job.yaml", "  prepare:\n    runs: job.yaml", "did you mean 'run'?"),
        ("  prepare:\n    run: job.yaml", "  prepare:\n    run: job.yml", "cannot be read"),
        (
            "  prepare:\n    run: job.yaml",
            "  prepare: job.yaml",
            "must be a mapping with one of run, tune, condition, register",
        ),
        ("  prepare:\n    run: job.yaml", "  Pre_pare:\n    run: job.yaml", "is not a valid step name"),
        ("program: train.py", "program: trian.py", "steps.train.run.program = trian.py"),
        ("epochs: 3", "epochs:", "has no value (give it: --param epochs=VALUE)"),
        ("params:", "parms:", "is not a field of a pipeline (did you mean 'params'?)"),
        ("steps:", "max_parallel: 0\nsteps:", "must be a whole number from 1 to 100"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    found = lines(tmp_path, GOOD.replace(old, new))

    assert any(said in line for line in found), found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("objective: maximize total", "objektive: maximize total", "did you mean 'objective'?"),
        ("${steps.prepare.model}", "${steps.prepair.model}", "did you mean 'prepare'?"),
        ("hyperparameters: {step: search}", "output: x", "each trial has its own"),
        ("from: search", "from: sarch", "did you mean 'search'?"),
        ("search: {add: [1, 5, 3]}", "search: {add: {low: 5, high: 1}}", "pipeline.yaml:11: steps.search.tune.search.add"),
    ],
)
def test_what_is_wrong_with_a_search_is_said_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TUNES and read(tmp_path, TUNES)
    found = lines(tmp_path, TUNES.replace(old, new))

    assert any(said in line for line in found), found


def test_a_circle_is_named(tmp_path: Path) -> None:
    text = GOOD.replace("  prepare:\n    run: job.yaml", "  prepare:\n    after: good\n    run: job.yaml")
    (found,) = lines(tmp_path, text)

    assert "depend on each other in a circle: train -> prepare -> good -> train" in found


def test_all_problems_of_all_jobs_are_said_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("program: train.py", "program: trian.py\n      instances: 0").replace("job.yaml", "{program: x.py}")
    found = lines(tmp_path, text)

    assert len(found) == 3 and found[0].startswith("pipeline.yaml:6") and "steps.prepare.run.program" in found[2]


@pytest.mark.parametrize("text", ["", "[]", "steps:", "steps: {}", "steps: []", "a: b"])
def test_a_file_without_steps_is_refused(tmp_path: Path, text: str) -> None:
    assert lines(tmp_path, text)
