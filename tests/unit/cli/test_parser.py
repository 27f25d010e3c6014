"""Every command reads its words with one parser, which answers in one style."""

from __future__ import annotations

import argparse

import pytest

from support.command_line import options_of, parser_of
from support.offenders import check_each
from trainshed.cli import main
from trainshed.cli.commands import all_commands
from trainshed.cli.parser import UsageError
from trainshed.cli.run import check

PARSED = [name for name in all_commands() if name != "train"]


def error_of(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command line that cannot be read prints: one line."""
    with pytest.raises(SystemExit) as caught:
        options_of(command, words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_every_command_says_what_it_does_and_what_each_word_means() -> None:
    def check(command: str) -> None:
        parser = parser_of(command)
        assert parser.description
        assert all(action.help or isinstance(action, argparse._SubParsersAction) for action in parser._actions)

    check_each(PARSED, check)


def test_an_unknown_flag_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    needed = {
        "cache": ["ls"],
        "check-image": ["image"],
        "checkpoints": ["list", "folder"],
        "compare": ["a", "b"],
        "export": ["sagemaker"],
        "describe": ["name"],
        "metrics": ["show"],
        "models": ["ls"],
        "diff": ["a", "b"],
        "note": ["run"],
        "predict": ["run", "data"],
        "tag": ["run"],
        "steps": ["status"],
        "data": ["show", "here"],
        "rm": ["run"],
        "release": ["all"],
    }

    def check_command(command: str) -> None:
        words = ["--colour", "train.py"] if command == "plan" else [*needed.get(command, []), "--colour"]
        line = error_of(command, words, capsys)
        assert line.startswith(f"trainshed {command}: does not take '--colour'")
        assert line.endswith(f"; see `trainshed {command} --help`")

    # What these read are the words of another command.
    check_each([name for name in PARSED if name not in ("runs", "completion")], check_command)


@pytest.mark.parametrize("flag", ["--channel", "--grace", "--name"])
def test_two_hyphens_are_the_value_of_the_flag_that_they_are_given_to(flag: str) -> None:
    options = vars(options_of("run", ["train.py", f"{flag}=--"]))

    assert options[{"--channel": "channels", "--grace": "grace_seconds"}.get(flag, "name")] in ("--", ["--"])


def test_two_hyphens_are_checked_as_any_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --keep-last: invalid int value: '--'" in error_of(
        "checkpoints", ["prune", "x", "--keep-last=--"], capsys
    )
    assert "argument --on: '--' must be one of" in error_of("run", ["--on=--"], capsys)


@pytest.mark.parametrize(
    ("command", "words", "near"),
    [
        ("run", ["--instanses", "2"], "(did you mean '--instances'?)"),
        (
            "run",
            ["--on", "slrum"],
            "argument --on: 'slrum' must be one of here, kubernetes, ray, slurm, ssh (did you mean 'slurm'?)",
        ),
        ("doctor", ["--jsn"], "(did you mean '--json'?)"),
        (
            "export",
            ["kubernets"],
            "must be one of kubernetes, sagemaker, algorithm, csv, tensorboard, mlflow (did you mean 'kubernetes'?)",
        ),
        ("export", ["kubernetes", "--jobst"], "(did you mean '--jobset'?)"),
        ("checkpoints", ["lst", "folder"], "must be one of list, verify, prune, convert (did you mean 'list'?)"),
        ("logs", ["--ho", "a"], "(did you mean '--host'?)"),
        ("run", ["train.py", "--epochs", "1"], "does not take '--epochs' (for the script: --hp epochs=1)"),
        ("run", ["train.py", "--batch-size=32", "--amp"], "(for the script: --hp batch-size=32 --hp amp=true)"),
        ("run", ["train.py", "--api-key", "abc"], "--hp 'api-key=******')"),
    ],
)
def test_the_nearest_word_is_suggested(
    command: str, words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert near in error_of(command, words, capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["--scale-lr", "lr"],
        ["--sbatch", "partition=gpu"],
        ["--on", "slurm", "--find-batch-size", "batch_size"],
    ],
)
def test_flags_that_do_not_go_together_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        check(options_of("run", words))


def test_a_usage_error_has_the_status_of_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "train.py", "--scale-lr", "lr"]) == 2
    assert capsys.readouterr().err == "trainshed: --scale-lr goes with --find-batch-size\n"


@pytest.mark.parametrize(
    "words", [["logs", "-n", "-3"], ["logs", "--rank", "-1"], ["watch", "--rank", "one"], ["verify", "-n", "-2"]]
)
def test_what_is_no_whole_number_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{words[-1]!r} is not a whole number from 0 on" in error_of(words[0], words[1:], capsys)
