"""What is masked, and what must stay readable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainshed.base.secrets import MASK, is_secret_name, mask_arguments, mask_broken, mask_mapping, mask_text, secret_values

SECRET = [
    "api_key", "API_KEY", "WANDB_API_KEY", "COMET_API_KEY", "apiKey", "APIKey", "SM_HP_API-KEY", "hf_token",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "hftoken", "token", "auth_token", "authToken", "access-token",
    "accessToken", "use_auth_token", "github_token", "slackBotToken", "api_tokens", "NEPTUNE_API_TOKEN", "password",
    "db.password", "DBPassword", "PGPASSWORD", "userpassword", "passwd", "passphrase", "MYSQL_PWD",
    "mlflow_tracking_password", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "secret",
    "client_secret", "SecretKey", "credentials", "access_key", "GOOGLE_APPLICATION_CREDENTIALS", "private_key",
    "ssh-key", "auth", "jwt", "bearer", "storage_account_key", "encryption_key",
]  # fmt: skip
HARMLESS = [
    "tokenizer", "tokenizer_name", "tokenized_data", "pretokenized_path", "max_tokens", "num_tokens", "n_tokens",
    "max_new_tokens", "tokens", "total_tokens", "tokens_per_batch", "token_type_ids", "token_count", "vocab_tokens",
    "pad_token", "eos_token_id", "mask_token", "special_tokens", "target_tokens", "add_special_tokens",
    "image_token_id", "token_embedding_dim", "token_level", "author", "authors", "authority", "keyboard", "monkey",
    "key", "keys", "key_dim", "num_key_value_heads", "key_name", "primary_key", "PWD", "OLDPWD", "path", "compass",
    "passive", "passes", "learning_rate", "SM_HPS", "turkey", "hockey", "tokyo",
]  # fmt: skip
# Invented, in the forms that the services give them.
KNOWN_FORMS = [
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "hf_" + "a1B2" * 8,
    "ghp_" + "a1B2" * 9,
    "sk-" + "proj-a1B2" * 5,
    "glpat-" + "a1B2" * 5,
    "pypi-" + "AgEIcHlwaS5vcmc" * 4,
    "xoxb-" + "1234567890-abc",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_look_like_it_are_not(name: str) -> None:
    assert not is_secret_name(name)


def test_values_of_secret_names_are_masked_at_any_depth_and_nothing_else_is() -> None:
    shown = mask_mapping(
        {
            "api_key": "abcdef",
            "tokenizer_name": "bert",
            "wandb": {"api_key": "ghijkl", "project": "p", "runs": [{"password": 123456}]},
            "empty_token": "",
            "token": None,
            "max_tokens": 512,
            "url": "https://user:pw@host/simple",
        }
    )

    assert shown == {
        "api_key": MASK,
        "tokenizer_name": "bert",
        "wandb": {"api_key": MASK, "project": "p", "runs": [{"password": MASK}]},
        "empty_token": "",
        "token": None,
        "max_tokens": 512,
        "url": f"https://{MASK}@host/simple",
    }


def test_secret_values_are_found_at_any_depth_longest_first() -> None:
    values = secret_values(
        {
            "api_key": "abcdef",
            "wandb": {"api_key": "ghijklmno", "project": "not-secret"},
            "SM_HP_LOGIN": '{"password": "from-json"}',
            "credentials": ["first-part", "second-part"],
            "pin_password": 123456,
            "plain": "nothing",
        }
    )

    assert set(values) == {"abcdef", "ghijklmno", "from-json", "first-part", "second-part", "123456"}
    assert [len(value) for value in values] == sorted(map(len, values), reverse=True)


@pytest.mark.parametrize("value", ["", "abc", True, False, None, "true", "None", 12])
def test_values_that_would_blank_out_innocent_text_are_no_secrets(value: Any) -> None:
    assert secret_values({"use_auth_token": value}) == ()


def test_a_secret_is_blanked_out_as_it_stands_in_json_too() -> None:
    secret = 'p"a\\ss\u00fc'
    text = mask_text(f"{secret} {json.dumps({'x': secret})}", secret_values({"password": secret}))

    assert text == f'{MASK} {{"x": "{MASK}"}}'


def test_a_secret_that_contains_another_is_blanked_out_whole() -> None:
    secrets = secret_values({"token": "abcd", "api_key": "abcdefgh"})

    assert mask_text("x abcdefgh abcd", secrets) == f"x {MASK} {MASK}"


@pytest.mark.parametrize("key", KNOWN_FORMS)
def test_keys_of_known_forms_are_masked_wherever_they_stand(key: str) -> None:
    assert key not in mask_text(f"using {key}, really")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:secret@host/simple/", f"https://{MASK}@host/simple/"),
        ("git+https://token@github.com/a/b", f"git+https://{MASK}@github.com/a/b"),
        ("https://host/a@b", "https://host/a@b"),
        ("mail me@host", "mail me@host"),
        ("the highest weight, task-1, asks", "the highest weight, task-1, asks"),
    ],
)
def test_logins_in_addresses_are_masked_and_other_text_is_not(text: str, shown: str) -> None:
    assert mask_text(text) == shown


def test_command_lines_show_no_secrets() -> None:
    shown = mask_arguments(
        ["train.py", "--api-key", "abc", "--hf_token=def", "--tokenizer", "bert", "--token", "--epochs", "3", "x-topsecret"],
        ("topsecret",),
    )

    assert shown == [
        *(
            "train.py",
            "--api-key",
            MASK,
            f"--hf_token={MASK}",
            "--tokenizer",
            "bert",
            "--token",
            "--epochs",
            "3",
            f"x-{MASK}",
        )
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"epochs": "3", "api_key": "hunter2", "x": }',
        '{"api_key" "hunter2"}',
        "{'password': 'hunter2'}",
        "{password: hunter2}",
        '{"password": "abc"hunter2"}',
        '{"hf_token": "hunter2',
        '"hf_token" = hunter2',
    ],
)
def test_a_broken_line_of_a_config_file_shows_no_secret(line: str) -> None:
    shown = mask_broken(line)

    assert "hunter2" not in shown
    assert len(shown) == len(line), "columns stay where they are"


def test_a_broken_line_without_secrets_is_shown_as_it_is() -> None:
    line = '{"tokenizer_name": "bert" "epochs": 3}'

    assert mask_broken(line) == line


# --- a whole job -----------------------------------------------------------------------------------------------------

HIDDEN = ("hunter2-top", "hunter2-nested", 'hunter2 "quoted" \\ ü', "hunter2-variable", "hunter2-login", "hunter2-source")
LEAKY = """
import os, sys
print("arguments", len(sys.argv), "token", os.environ["HF_TOKEN"] == "hunter2-variable")
raise ValueError(f"cannot log in with {sys.argv} {os.environ['SM_HPS']} {os.environ['HF_TOKEN']}")
"""


@pytest.fixture
def job_with_secrets(job_tree: Any) -> Any:
    """A job that has a secret in every place where people put them, and a script that shows them all as it fails."""
    job_tree.code("train.py", LEAKY)
    return job_tree.configure(
        hyperparameters={
            "sagemaker_submit_directory": "https://me:hunter2-source@host/code.tar.gz",
            "api_key": "hunter2-top",
            "wandb": {"api_key": "hunter2-nested", "project": "shown-project"},
            "db_password": json.dumps('hunter2 "quoted" \\ ü'),
            "index": "https://me:hunter2-login@host/simple",
            "max_tokens": "512",
        }
    )


def test_a_dry_run_shows_no_secret(job_with_secrets: Any) -> None:
    done = job_with_secrets.train("--dry-run", HF_TOKEN="hunter2-variable")

    assert done.status == 0 and "hunter2" not in done.output
    assert "shown-project" in done.stdout and "--max_tokens 512" in done.stdout


@pytest.mark.parametrize("distribution", ["script", "torchrun"])
def test_a_failing_job_writes_no_secret_into_its_reports(distribution: str, job_with_secrets: Any) -> None:
    done = job_with_secrets.train(
        HF_TOKEN="hunter2-variable", TRAINSHED_DISTRIBUTION=distribution, TRAINSHED_PROCESSES_PER_HOST="2"
    )

    assert done.status == 1 and "token True" in done.stdout, "the script itself gets them"
    ours = "\n".join(line for line in done.stderr.splitlines() if line.startswith("trainshed: "))
    assert "cannot log in with" in ours and "hunter2" not in ours
    assert "cannot log in with" in job_with_secrets.failure and "hunter2" not in job_with_secrets.failure
    (record,) = (job_with_secrets.base / "output/data/run").glob("*.json")
    assert "hunter2" not in record.read_text() and "shown-project" in record.read_text()
