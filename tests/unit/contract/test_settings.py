"""What a job may ask of trainshed: hyperparameters and variables of ours."""

from __future__ import annotations

from typing import Any

import pytest

from support.offenders import check_each
from trainshed.base.errors import Problem
from trainshed.contract.settings import Settings, read_settings


def settings_of(reserved: dict[str, Any], environ: dict[str, str] | None = None) -> tuple[Settings, list[Problem]]:
    problems: list[Problem] = []
    settings = read_settings(reserved, "hyperparameters.json", environ or {}, problems)
    return settings, problems


def test_nothing_asked_means_the_defaults() -> None:
    assert settings_of({}, {"PATH": "/bin", "TRAINSHED_RUN_ID": "x", "TRAINSHED_ENTRYPOINTS": "/e"}) == (Settings(), [])


EVERY_SETTING: dict[str, tuple[str, Any]] = {
    "distribution": ("torchrun", "torchrun"),
    "processes_per_host": ("4", 4),
    "engine": ("torchrun", "torchrun"),
    "max_restarts": ("3", 3),
    "min_nodes": ("1", 1),
    "argv": ("flags", "flags"),
    "grace_seconds": ("1.5", 1.5),
    "host_timeout_seconds": ("10", 10.0),
    "master_port": ("2e4", 20_000),
    "roster_port": ("20001", 20_001),
    "install_timeout_seconds": ("60", 60.0),
    "checkpoint": ("auto", "auto"),
    "checkpoint_copy_to": ("s3://bucket/run", "s3://bucket/run"),
    "checkpoint_every": ("auto,most=20m", "auto,most=20m"),
    "checkpoint_memory": ('{"every_steps": 4}', '{"every_steps": 4, "copies": 1}'),
    "checkpoint_options": ("given", "given"),
    "notices": ("off", "off"),
    "interrupted_exit_code": ("75", 75),
    "hang_seconds": ("0.5", 0.5),
    "on_hang": ("continue", "continue"),
    "stacks": ("off", "off"),
    "warm_start": ("auto", "auto"),
    "bind": ("numa", "numa"),
    "metrics": ("hf", "hf"),
    "system_metrics": ("0.5", "0.5"),
    "rules": ("Overfit, LossSpike", "Overfit, LossSpike"),
    "tensor_steps": ("7", 7),
    "profile": ("auto", "auto"),
    "fingerprint": ("whole", "whole"),
    "from_run": ("digits-2026", "digits-2026"),
    "pipeline": ('{"partitions": 2}', '{"partitions": 2}'),
    "reduce": ("bf16", "bf16"),
    "accelerate": ("conf/default_config.yaml", "conf/default_config.yaml"),
    "roles": ('{"worker": 4, "ps": 2}', '{"worker": 4, "ps": 2}'),
    "servers": ("tensorflow", "tensorflow"),
    "compiler": ("inductor", "inductor"),
    "compiler_mode": ("max-autotune", "max-autotune"),
    "compiler_regional": ("off", "off"),
    "compiler_dynamic": ("true", "on"),
    "compiler_cache": ("off", "off"),
    "program": ("train.py", "train.py"),
    "source": ("/src", "/src"),
}


def test_the_list_of_settings_above_is_complete() -> None:
    assert set(EVERY_SETTING) == set(Settings._fields)


def test_every_setting_can_be_given_either_way() -> None:
    def check(name: str) -> None:
        written, value = EVERY_SETTING[name]
        by_hyperparameter, problems = settings_of({f"trainshed_{name}": written})
        assert problems == [] and getattr(by_hyperparameter, name) == value
        assert type(getattr(by_hyperparameter, name)) is type(getattr(Settings, name))
        assert settings_of({}, {f"TRAINSHED_{name.upper()}": written}) == (by_hyperparameter, [])

    check_each(EVERY_SETTING, check)


def test_the_hyperparameter_wins() -> None:
    settings, _ = settings_of({"trainshed_argv": "json"}, {"TRAINSHED_ARGV": "flags"})

    assert settings.argv == "json"


def test_parallel_is_the_word_for_what_was_called_pipeline() -> None:
    settings, problems = settings_of({"trainshed_distribution": "parallel"})

    assert settings.distribution == "pipeline" and not problems


@pytest.mark.parametrize("value", ["", None])
def test_an_empty_value_is_no_value(value: Any) -> None:
    assert settings_of({"trainshed_engine": value}) == (Settings(), [])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("trainshed_distribution", "torchrn", "did you mean 'torchrun'?"),
        ("trainshed_engine", "horovod", "must be one of trainshed, torchrun"),
        ("trainshed_argv", ["json"], "must be one of"),
        ("trainshed_processes_per_host", "two", "must be a whole number from 0 to 4096"),
        ("trainshed_processes_per_host", "1.5", "whole number"),
        ("trainshed_processes_per_host", "-1", "whole number"),
        ("trainshed_processes_per_host", True, "whole number"),
        ("trainshed_processes_per_host", "9" * 400, "whole number"),
        ("trainshed_grace_seconds", "NaN", "must be a number from 0 to 86400"),
        ("trainshed_grace_seconds", "1e999", "must be a number"),
        ("trainshed_checkpoint_copy_to", "bucket/run", "must be a URL like s3://bucket/run"),
        ("trainshed_checkpoint_every", "often", "must be auto, or like auto,least=30s"),
        ("trainshed_checkpoint_every", "auto,least=2m,most=1m", "least <= most"),
        ("trainshed_checkpoint_memory", "on", 'must be an object such as {"every_steps": 1, "copies": 1}'),
        ("trainshed_checkpoint_memory", {"every_steps": 0}, "every_steps must be a whole number from 1 to 1000000"),
        ("trainshed_checkpoint_memory", {"every_step": 1}, "did you mean 'every_steps'"),
        ("trainshed_system_metrics", "often", "must be auto, off, or a number of seconds from 0.1 to 60"),
        ("trainshed_system_metrics", "0.05", "from 0.1 to 60"),
        ("trainshed_system_metrics", ["1"], "from 0.1 to 60"),
        ("trainshed_system_metrics", "NaN", "from 0.1 to 60"),
        ("trainshed_master_port", "-1", "from 0 to 65535"),
        ("trainshed_master_port", "70000", "from 0 to 65535"),
        ("trainshed_grace_secnds", "1", "did you mean 'trainshed_grace_seconds'?"),
        ("trainshed_", "1", "is not a setting"),
    ],
)
def test_a_wrong_setting_is_reported_with_place_name_and_value(name: str, value: Any, message: str) -> None:
    settings, (problem,) = settings_of({name: value})

    assert message in problem.line()
    assert problem.file == "hyperparameters.json" and problem.field == name
    assert settings == Settings()


def test_a_misspelt_variable_is_reported_as_a_variable() -> None:
    _, (problem,) = settings_of({}, {"TRAINSHED_GRACE_SECNDS": "1"})

    assert problem.line().startswith("environment: TRAINSHED_GRACE_SECNDS")
    assert "did you mean 'TRAINSHED_GRACE_SECONDS'?" in problem.line()


def test_all_wrong_settings_are_reported_at_once() -> None:
    _, problems = settings_of({"trainshed_argv": "x", "trainshed_engine": "y"}, {"TRAINSHED_MASTER_PORT": "z"})

    assert len(problems) == 3
