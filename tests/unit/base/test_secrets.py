"""What is masked, and what must stay readable."""

from __future__ import annotations

import json
import shlex
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from trainshed.base.secrets import (
    MASK,
    is_secret_name,
    mask_arguments,
    mask_broken,
    mask_bytes,
    mask_leaves,
    mask_mapping,
    mask_text,
    secret_values,
    to_bytes,
)
from trainshed.contract.wire.secret_names import environment_secrets

pytestmark = pytest.mark.safety

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


def test_names_of_secrets_are_known() -> None:
    missed = [name for name in SECRET if not is_secret_name(name)]

    assert not missed, f"taken for harmless: {missed}"


def test_names_that_only_look_like_it_are_not() -> None:
    masked = [name for name in HARMLESS if is_secret_name(name)]

    assert not masked, f"taken for secrets: {masked}"


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


# A password with everything in it that any notation has to quote.
AWKWARD = "p\"a's\\s w/\u00fcrd%&+\ud83d"
KEY_FILE = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0B\nAQEFAASCBKgwggSkAgEAAoIB\nab1=\n-----END PRIVATE KEY-----\n"
)


def in_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    "spell",
    [str, json.dumps, in_json, lambda text: json.dumps({"x": json.dumps({"y": text})}), repr, lambda text: repr([text]),
     shlex.quote, lambda text: quote(to_bytes(text), safe=""), lambda text: quote(to_bytes(text)),
     lambda text: quote_plus(to_bytes(text), safe="/")],
)  # fmt: skip
def test_a_secret_is_masked_however_a_log_or_a_file_spells_it(spell: Any) -> None:
    for secret in (AWKWARD, AWKWARD.replace("\ud83d", "\udcff"), "plain-enough"):
        shown = mask_text(f"<{spell(secret)}>", secret_values({"password": secret}))
        assert secret[:3] not in shown and "rd" not in shown, shown
        assert MASK in shown and shown[0] == "<" and shown[-1] == ">"


def test_each_line_of_a_secret_of_several_lines_is_masked_and_its_frame_is_not() -> None:
    secrets = secret_values({"tls_private_key": KEY_FILE})
    lines = KEY_FILE.splitlines()

    for line in lines[1:-1]:
        assert mask_text(f"[1] {line}", secrets) == f"[1] {MASK}"
        assert mask_bytes(f"[1] {line}\r\n".encode(), tuple(map(to_bytes, secrets))) == f"[1] {MASK}\r\n".encode()
    assert mask_text(lines[0], secrets) == lines[0]
    assert mask_text(json.dumps({"x": KEY_FILE}), secrets) == json.dumps({"x": MASK})


def test_the_list_of_secret_variables_is_a_list_of_names_and_blanks_none() -> None:
    secrets = environment_secrets({"TRAINSHED_SECRET_NAMES": "FANCY", "FANCY": "correct horse"})

    assert mask_text("KeyError: 'FANCY' correct horse", secrets) == f"KeyError: 'FANCY' {MASK}"


def test_a_value_that_is_also_a_name_blanks_no_name() -> None:
    secrets = secret_values({"password": "weights", "weights": "yes", "nested": {"deep": 1}, "api_key": "deep"})

    assert mask_text("weights deep", secrets) == "weights deep"


@pytest.mark.parametrize("value", ["1", "true", "train", "TRAIN", "None", "root", "password", "======", "abc"])
def test_short_and_common_values_do_not_blank_half_the_log(value: str) -> None:
    line = f"python train.py --train 1 true None root password ====== abc {value}"

    assert mask_text(line, secret_values({"api_token": value})) == line


@pytest.mark.parametrize(
    ("secret", "line", "shown"),
    [
        ("tiger", "tigers, tiger; tiger_x xtiger (tiger)", f"tigers, {MASK}; tiger_x xtiger ({MASK})"),
        ("1234", "step 12345 pin 1234 and 91234", f"step 12345 pin {MASK} and 91234"),
        ("ti9er", "xti9ery", f"x{MASK}y"),
        ("tigertiger", "xtigertigery", f"x{MASK}y"),
    ],
)
def test_a_short_word_or_number_is_masked_only_where_it_stands_alone(secret: str, line: str, shown: str) -> None:
    secrets = secret_values({"password": secret})

    assert mask_text(line, secrets) == shown
    assert mask_bytes(line.encode(), tuple(map(to_bytes, secrets))) == shown.encode()


def test_a_long_word_before_an_address_is_no_reason_to_look_at_it_for_long() -> None:
    word = "a" * 1_000_000  # its square in steps would be hours

    assert mask_text(f"{word} {word}://me:secret@host") == f"{word} {word}://{MASK}@host"


def test_the_login_of_a_url_is_a_secret_whatever_the_variable_is_called() -> None:
    secrets = secret_values(
        {
            "PIP_INDEX_URL": "https://me:p%40ss-word@host/simple http://0123456789abcdefgh@git",
            "settings": {"remote": "postgres://someone:letters@db:5432/x"},
            "REPOSITORY": "ssh://someone@host/x s3://bucket/a@b",
        }
    )

    assert mask_text("p%40ss-word p@ss-word 0123456789abcdefgh letters", secrets) == " ".join([MASK] * 4)
    assert mask_text("someone host bucket", secrets) == "someone host bucket"


def test_a_password_with_an_at_sign_in_a_url_is_masked_whole() -> None:
    assert mask_text("see https://me:p@ss@w@host/x and me@host") == f"see https://{MASK}@host/x and me@host"


def test_values_are_masked_at_any_depth_and_names_stay() -> None:
    data = {"deep-secret": ["a deep-secret", {"x": "deep-secret"}], "n": 7}

    assert mask_leaves(data, ("deep-secret",)) == {"deep-secret": [f"a {MASK}", {"x": MASK}], "n": 7}


def test_json_in_a_text_is_masked_inside_and_stays_json() -> None:
    shown = mask_mapping({"wandb": '{"api_key": "abcdef", "project": "p"}', "list": '[{"password": 7}]'})

    assert shown == {"wandb": f'{{"api_key": "{MASK}", "project": "p"}}', "list": f'[{{"password": "{MASK}"}}]'}


def test_command_lines_in_the_style_of_hydra_and_in_json_show_no_secrets() -> None:
    shown = mask_arguments(["wandb.api_key=abc", "+db.password=def", "lr=1", '{"api_key": "ghi"}', "https://x/?token=a"])

    assert shown == [
        f"wandb.api_key={MASK}",
        f"+db.password={MASK}",
        "lr=1",
        f'{{"api_key": "{MASK}"}}',
        "https://x/?token=a",
    ]


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
