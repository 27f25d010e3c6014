"""Secrets by their shape, in all forms that logs, headers and files have; and what only looks like one.

All secrets are invented. A text is `what stands around {the secret} it`; the braces are not part of it.
"""

from __future__ import annotations

import pytest

from support.secret_texts import A20, A36, HEX32, HEX40, JWT, blanked, missed
from trainshed.base.secret_shapes import MASK
from trainshed.base.secrets import mask_bytes, mask_mapping, mask_text

pytestmark = pytest.mark.safety
MOST_MISSED = MOST_BLANKED = 2

PEM = "MIIEowIBAAKCAQEAvRS7mQ2kq3n0F1\nZ7GmA9oQ0dQvT5sZkX1cUuJk2b3N4o5P6\n"

SECRETS = f"""
Authorization: Bearer <<{A20}>>
> authorization: Basic <<dXNlcjpodW50ZXIy>>
{{"headers": {{"Authorization": "Token <<9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b>>"}}}}
{{'Authorization': 'Bearer <<ya.short-1>>'}}
curl -H "Authorization: Bearer <<opaque0token>>" https://api.host/v1
{{\\"authorization\\": \\"Bearer <<{A20}>>\\"}}
('authorization', b'Bearer <<{A20}>>')
Proxy-Authorization: Basic <<cHJveHk6czNjcmV0>>
Authorization: AWS4-HMAC-SHA256 <<Credential=AKIAABCDEFGHIJKLMNOP/20260101/us-east-1/s3, Signature={HEX32}>>
Authorization: Digest <<username="me", response="6629fae49393a05397450978507c4ef1">>
x-api-key: <<{A20}>>
X-Auth-Token: <<{HEX32}>>
{{"X-Api-Key": "<<short1>>", "accept": "*/*"}}
Cookie: <<session=abc123def456; csrftoken=q1w2e3>>
Set-Cookie: <<sid=s%3Aabc123.def; Path=/; HttpOnly>>
{{"Cookie": "<<JSESSIONID=0A1B2C3D4E5F60718293A4B5C6D7E8F9>>"}}
DefaultEndpointsProtocol=https;AccountName=mine;AccountKey=<<{A36}abcd==>>;EndpointSuffix=core.windows.net
Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=<<{A20}AA=>>
postgres://trainer:<<hunter2>>@db:5432/runs
mongodb+srv://app:<<p%40ss>>@cluster0.abc.mongodb.net/test?retryWrites=true
redis://:<<s3cr3t>>@cache:6379/0
amqp://guest2:<<w0rd>>@mq//
jdbc:postgresql://db/runs?user=me&password=<<hunter2>>&ssl=true
jdbc:sqlserver://db:1433;databaseName=runs;user=sa;password=<<Str0ng!>>;encrypt=true
jdbc:oracle:thin:scott/<<tiger1>>@//db:1521/xe
Server=db;Database=runs;Uid=me;Pwd=<<hunter2>>;
mysql+pymysql://root:<<hunter2>>@localhost/runs
https://b.s3.amazonaws.com/k?X-Amz-Algorithm=AWS4&X-Amz-Expires=60&X-Amz-Signature=<<{HEX32}{HEX32}>>
https://x.blob.core.windows.net/c/b?sv=2022-11-02&sp=r&sig=<<a%2Bb1c2d3e4f5g6h7i8j9k0%3D>>&se=2026
https://storage.googleapis.com/b/o?X-Goog-Expires=600&X-Goog-Signature=<<{HEX40}>>
https://b.s3.amazonaws.com/k?AWSAccessKeyId=x&Signature=<<vjbyPxybdZaNmGa%2ByT272YEAiv4%3D>>&Expires=1
posting to https://hooks.slack.com/services/<<T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX>>
https://discord.com/api/webhooks/<<123456789012345678/abcDEF-ghiJKL_mnoPQR>>
https://acme.webhook.office.com/webhookb2/<<0a1b2c3d-1111-2222-3333-444455556666@aa/IncomingWebhook/{HEX32}/x>>
https://api.telegram.org/bot<<123456789:AAF-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P>>/sendMessage
machine api.wandb.ai login user password <<{HEX40}>>
machine github.com login me password <<plainword>>
STRIPE_KEY=<<abcdefgh>>
export OPENAI_KEY='<<{A20}>>'
AZURE_DEVOPS_PAT=<<{A20}>>
MY_TOKEN=<<hunter2hunter2>>
DB_PASS=<<tiger>>
password=<<hunter2>>
"db_password": "<<correct horse battery>>",
password: <<hunter2>>
{{'secret_key': '<<abc d"ef>>', 'epochs': 3}}
client_secret=<<abcdefgh>>&grant_type=client_credentials
train.py --api-key <<abcdef12>> --epochs 3
train.py --password=<<hunter2>>
-----BEGIN RSA PRIVATE KEY-----<<\\n{PEM.replace(chr(10), chr(92) + "n")}>>-----END RSA PRIVATE KEY-----
token is <<{JWT}>>
using <<ghp_{A36}>> now
remote: <<github_pat_11ABCDEFG0a1B2c3D4e5F6_g7H8i9J0k1L2m3N4o5P6q7R8>>
<<glpat-{A20}>>
login with <<hf_{A20}{A20}>>
OpenAI(<<sk-proj-{A36}>>)
bot=<<xoxb-123456789012-123456789012-{A20}>>
aws <<AKIAABCDEFGHIJKLMNOP>> in us-east-1
https://maps.host/js?key=<<AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q>>
//registry.npmjs.org/:_authToken=<<npm_{A36}>>
docker: <<dckr_pat_{A20}abcdefg>>
""".strip().splitlines()

HARMLESS = """
tokenizer=bert-base-uncased
Loading tokenizer from bert-base-uncased
num_tokens=512
tokens: 1024
tokens/s 12345.6 tokens_per_batch=4096
token: hello
next token: the
unexpected token: ','
SyntaxError: invalid token: '0777'
token 5 of 12: [CLS]
key_dim=64
key: value
KeyError: 'learning_rate'
KeyError: 'password'
num_key_value_heads=8
token_embedding: 768x512
token_embedding.weight torch.Size([30522, 768])
primary_key=user_id
PRIMARY_KEY=user_identifier_1
foreign_key: table_2.id_1
label_key=label1234
image_key=jpg;png2345
sort_key=created_at
CACHE_KEY=linux-x64-node12-abc123
cache_key=9f86d081884c7d659a2feaa0c55ad015
commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b
git checkout 7d6e90b
HEAD is now at 33a27ee parallel: count what AdamW makes
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
md5=d41d8cd98f00b204e9800998ecf8427e
run id 123e4567-e89b-12d3-a456-426614174000
uuid: 123e4567-e89b-12d3-a456-426614174000
job-name-with-a-hash-5f2b9c1d7e8a
etag: "33a64df551425fcc55e4d42a148795d9f25f89d4"
data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk
{"image": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"}
/opt/ml/input/data/train/part-00000-of-00016.parquet
/home/me/.ssh/id_rsa.pub
ssh_key=/home/me/.ssh/id_ed25519
ssh-key: ~/.ssh/id_ed25519
GOOGLE_APPLICATION_CREDENTIALS=/opt/ml/input/config/google.json
private_key: /etc/ssl/private/server.pem
s3://bucket/some/prefix/with_token_in_name/file.json
https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/resolve/main/config.json
https://host/a@b
https://pypi.org/simple/torch/?page=2&sort=name
https://arxiv.org/abs/2401.01234
https://github.com/org/repo/blob/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b/train.py#L10
https://docs.github.com/en/webhooks/about-webhooks
https://example.com/docs/hooks/pre-commit
tcp://10.0.0.1:29500
mail me@host.example
password:
password: None
password=None
password=''
password required
Password: required
wrong password: try again
invalid password: expected at least 8 characters
password=password
password=args.password
password=os.environ["DB_PASSWORD"]
password=getpass.getpass("Password: ")
api_key=config.api_key
api_key=API_KEY
api_key: str
api_key: Optional[str] = None
token: str | None = None
def login(token: str, password: str) -> None:
self.token = token
auth_token=${AUTH_TOKEN}
token=$HF_TOKEN
api_key=<your-api-key>
API_KEY={{ api_key }}
secret=%s
token=******
password: ********
secret: true
use_auth_token=True
use_auth_token: false
HF_TOKEN is not set
set HF_TOKEN to a token of your account
pass --api-key, or set WANDB_API_KEY
usage: train.py [--token TOKEN] [--epochs EPOCHS]
basic training goes on
Basic authentication is required
Basic usage examples
bearer authentication is not supported
a bearer of news
Bearer token required
Authorization: required
authorization failed for this user
not authorized: sign in first
authors: Jane Doe, John Roe
author=jane.doe
authority=example.org
keyboard: us
monkey=banana
turkey: 12
hotkey=ctrl
hockey score 3:2
keys: ['a', 'b', 'c']
dict_keys(['input_ids', 'attention_mask', 'token_type_ids'])
Missing key(s) in state_dict: "encoder.layer.11.attention.self.key.weight"
Unexpected key: decoder.block.0.layer.0.SelfAttention.k.weight
query_key_value.weight: 12288x4096
attn.key.bias tensor(0.1234)
key_padding_mask=None
key=0 value=1
loss=0.1234 lr=1e-4
epoch=3 step=120 loss=0.4567 acc=0.8901
Epoch 3/10: 100%|##########| 1875/1875 [00:12<00:00, 151.21it/s, loss=0.123]
2026-11-28 09:00:00,123 INFO root: started
[2026-11-28 09:00:00] INFO trainer.py:120 - step: 120
pad_token=<pad>
pad_token_id=0
eos_token: </s>
bos_token_id: 1
"eos_token": "<|endoftext|>"
"unk_token": "[UNK]"
"special_tokens": {"additional": ["<|im_start|>", "<|im_end|>"]}
mask_token=[MASK]
image_token_index=32000
max_new_tokens=256
stop_token: <|eot_id|>
tokens_seen=1234567890
token_count: 12345678
token_ids=[101, 7592, 2088, 102]
token_level_loss=0.5
total tokens 1.2e9
tokenized 12345678 documents
prompt_tokens: 128 completion_tokens: 64
max_tokens=4096,temperature=0.7
add_special_tokens=True
token_dropout=0.1
tokens_per_second=12345
compass=north
passes=3
forward_pass=12.5ms
backward pass: 31.2 ms
FIRST_PASS=completed1
num_passes: 10
passive=True
bypass=1
path=/usr/bin
PATH=/usr/local/bin:/usr/bin
PWD=/opt/ml/code
OLDPWD=/root
patience=5
pattern=checkpoint-*
file_pattern: part-*.parquet
spatial_scale=0.25
compat=1.2.3
sasrec: 0.1234
secretary=jane
cookie_cutter=square1
cookies are off
cookies: none
Cookie policy: see site
a cookie jar
webhook: off
hook=forward_pre_hook1234567
register_hook: module.12
hooks: [GradHook, LossHook]
connection: keep-alive
connection refused: 10.0.0.1:29500
connection_timeout=30
conn=12
credentials: found in ~/.aws/credentials
Unable to locate credentials
no credentials given
signature: (x: int, y: int) -> int
signal=15
sig=12
design=factorial
task-12345678901234567890
disk-1234567890123456789012
risk-adjusted-return-of-portfolio-2
sk-learn-contrib-imbalanced-learn-extra
desk-lamp-1234
github: https://github.com/org/repo
gh_pages_branch_of_this_repository
hf_hub_download_retries_exceeded
npm_config_registry_of_this_project=https://registry.npmjs.org
pypi-server-that-is-inside-of-our-own-network
-----BEGIN CERTIFICATE-----
-----BEGIN PUBLIC KEY----- MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7mP0lq0Qw1e2R3t4Y5u6I7o8P9 me@host
a file must begin with -----BEGIN PRIVATE KEY----- and have no password
trainshed_processes_per_host=4
SM_HP_LABEL_KEY=label_1234
SM_HP_KEY_DIM=64
SM_CHANNEL_TRAIN=/opt/ml/input/data/train
TRAINSHED_CHECKPOINT_MIRROR_INTERVAL_SECONDS=30
NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO
MASTER_ADDR=10.0.0.1 MASTER_PORT=29500
torch.distributed.elastic.multiprocessing.errors.ChildFailedError
DistributedDataParallel_find_unused_parameters_1
"model_max_length": 512, "tokenizer_class": "LlamaTokenizerFast"
transformers.models.llama.modeling_llama.LlamaForCausalLM
encoder.layers.10.self_attn.out_proj.weight 0.0123
input_ids.shape=(8, 512)
eyJ is how base64 of JSON begins
key-value store
key-frame 12345
api: v1, version 2.3.4
AKIA is how access keys begin
docker login succeeded
docker run -u 1000:1000 image train
--user 1000:1000
curl -u needs a user
user=me host=db
login: me
machine has 8 GPUs
this machine, login or password are wrong
identified by its name
random_state=1234567890123456789
seed=12345678901234567890
size=9223372036854775807
0x7f2a1c0d3e4f
[0.1234, 0.5678, 0.9012]
100%|##########| 10.0M/10.0M [00:01<00:00, 8.12MB/s]
bert-base-multilingual-cased-finetuned-conll03
facebook/opt-125m-with-dummy-weights-2024
arn:aws:iam::123456789012:role/service-role/AmazonSageMaker-ExecutionRole-20260101T000000
123456789012.dkr.ecr.us-east-1.amazonaws.com/trainshed:1.2.3
pytorch-training-2026-11-28-09-00-00-123
""".strip().splitlines()

# Written when the expressions were done, to see whether they hold for more than what they were made with.
MORE_SECRETS = f"""
requests.get(url, headers={{"Authorization": "Bearer <<{HEX40}>>"}})
    "x-goog-api-key": "<<{A20}>>",
WWW: authorization=Bearer%20ignored&access_token=<<{A20}>>
GET /login?user=me&token=<<{HEX32}>> HTTP/1.1
{{"auth": {{"username": "me", "password": "<<hunter2>>"}}}}
'registry_password': '<<p@ssw0rd>>'
MYSQL_ROOT_PASSWORD=<<rootpw>>
 - name: DB_PASSWORD value=1 DB_PASSWORD: <<hunter22>>
set PGPASSWORD=<<tiger>>; psql -h db
sshpass -p <<hunter2>> ssh me@host
docker login registry.io -u me -p <<hunter2>>
curl -u me:<<hunter2>> https://host/api
curl --user "me:<<hunter2>>" https://host/api
db:5432:runs:me:<<hunter2>>
CREATE USER me IDENTIFIED BY '<<hunter2>>'
Data Source=db;User ID=sa;Password=<<Hunter 2>>;
AccountName=a;SharedAccessSignature=<<sv=2022&sig=abc%2Bdefghijklmnop>>
kafka sasl.jaas.config=Plain required username="me" password="<<hunter2>>";
spark.hadoop.fs.s3a.secret.key=<<wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY>>
aws_secret_access_key = <<wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY>>
WANDB_API_KEY: <<{HEX40}>>
wandb login --key <<{HEX40}>>
SENTRY_DSN=https://<<{HEX32}>>@o1.ingest.sentry.io/2
mlflow uri http://user:<<hunter2>>@mlflow:5000
git clone https://oauth2:<<{A20}>>@gitlab.com/a/b.git
hvs token <<hvs.CAESI{A20}>>
sendgrid <<SG.{A20}ab.{A36}ab>>
slack <<xapp-1-A0123456789-1234567890123-{HEX32}>>
openssh -----BEGIN OPENSSH PRIVATE KEY-----<< b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAE >>-----END OPENSSH PRIVATE KEY-----
"private_key": "-----BEGIN PRIVATE KEY-----<<\\nMIIEvQIBADANBgkqhkiG9w0BAQ\\n>>-----END PRIVATE KEY-----\\n"
TWILIO_AUTH_TOKEN=<<{HEX32}>>
DD_API_KEY=<<{HEX32}>>
export GH_TOKEN=<<gho_{A36}>>
https://outlook.office.com/webhook/<<0a1b2c3d-1111@2222/IncomingWebhook/{HEX32}/3333>>
mattermost https://chat.host/hooks/<<x1y2z3a4b5c6d7e8f9g0h1i2j3>>
https://fn.azurewebsites.net/api/go?code=<<{A36}==>>
""".strip().splitlines()
MORE_HARMLESS = """
Downloading tokenizer_config.json: 100%|####| 26.0/26.0 [00:00<00:00, 5.12kB/s]
Some weights were not used: ['cls.predictions.bias', 'cls.seq_relationship.weight']
loading configuration file https://huggingface.co/bert-base-uncased/resolve/main/config.json
Token indices sequence length is longer than the specified maximum (1024 > 512)
tok/s: 1234.5, mfu: 45.6%
authentication took 12 ms
oauth flow finished
token_type_ids: torch.Size([8, 128])
vocab: {'[PAD]': 0, '[UNK]': 100}
split_key=train2017
join key: user_id2, item_id3
group_by_key=category_1
keypoint=17
keypoints_per_image: 17
keys=12345678
{"key": "value12345"}
{"name": "token", "value": 5}
S3_KEY=prefix/data/part-0001.csv
MODEL_KEY=resnet50_v2
METRIC_KEY=val_loss_1
monitor_key: val/acc1
ROUTING_KEY=queue12345
secret_sauce_layers: 4
passage_length=384
passages: 8841823
password_policy has no rules
reading passwords.txt
the secret of success
no secrets are mounted
secrets: []
hyperparameters={'tokenizer': 'gpt2', 'max_tokens': 128}
Traceback (most recent call last):
  File "/opt/ml/code/train.py", line 12, in <module>
    client = Client(api_key=os.environ["API_KEY"], timeout=30)
    raise ValueError("api_key is missing")
ValueError: password must be at least 8 characters
ValueError: token must not be empty
PermissionError: [Errno 13] Permission denied: '/root/.netrc'
401 Client Error: Unauthorized for url: https://huggingface.co/api/whoami-v2
cas ://
a://b
grpc://worker-0:50051
file:///opt/ml/input/data
hdfs://namenode:8020/user/me
redis://cache:6379/0
jdbc:postgresql://db:5432/runs
sid=12 gid=100
signature=SHA256
sign=positive
x-amz-request-id: 4442587FB7D0A2F9
x-amz-id-2: vlR7PnpV2Ce81l0PRw6jlUpck7Jo5ZsQjryTjKlc5aLWGVHPZLj5NeC6qMa0emYBDXOo6QBU0Wo=
ETag: 3858f62230ac3c915f300c664312c11f-9
BASIC_BLOCK_EXPANSION=4
class BasicBlock(nn.Module):
basic block1234567890 of resnet
cookiecutter-data-science-template-2024
webhook_timeout=30
Password (again):
SECRET_ARN=arn:aws:secretsmanager:us-east-1:123456789012:secret:mine-a1B2c3
login(password=pw, token=tok)
Connected to tcp://10.0.0.1:29500 as rank 1
conn_str_length: 12
RANK=0 LOCAL_RANK=0 WORLD_SIZE=8
wandb: Run `wandb offline` to turn off syncing, run 3k2j1h4g
mlflow run 9f86d081884c7d659a2feaa0c55ad015
2x NVIDIA H200, driver 570.124.06
model-00001-of-00004.safetensors
checkpoint-12000/optimizer.pt
""".strip().splitlines()


def test_secrets_of_all_shapes_are_masked() -> None:
    assert len(SECRETS) >= 60
    found = missed(SECRETS + MORE_SECRETS)
    assert len(found) <= MOST_MISSED, "\n".join(found)


def test_what_only_looks_like_a_secret_stays() -> None:
    assert len(HARMLESS) >= 200
    found = blanked(HARMLESS + MORE_HARMLESS)
    assert len(found) <= MOST_BLANKED, "\n".join(found)


NAMES = [
    "STRIPE_KEY", "GITHUB_PAT", "DB_PASS", "CI_TOKEN", "Authorization", "Cookie", "SLACK_WEBHOOK_URL", "x-api-key",
    "AZURE_STORAGE_CONNECTION_STRING", "openai_key", "MY_CREDS",
]  # fmt: skip


def test_values_of_these_names_are_masked_whatever_they_are() -> None:
    assert mask_mapping({"a": [dict.fromkeys(NAMES, "plain")]}) == {"a": [dict.fromkeys(NAMES, MASK)]}


BEGINNINGS = [
    "authorization: bearer ", "eyJ", "sk-", "/hook/", "machine x ", "user ", "-----BEGIN PRIVATE KEY-----a: b\n", "cookie",
    "://a", "docker login ", "--token ", "\npassword ", "secret='", "\\", '"', "basic ", "a.", "_", "key=a,",
]  # fmt: skip


def test_a_text_of_a_megabyte_is_looked_through_at_once() -> None:
    """The square of its length in steps would be hours."""
    for begin in BEGINNINGS:
        assert "hunter22" not in mask_text(begin * (1_000_000 // len(begin)) + " password=hunter22"), begin
    for word in ("token=a.a", "token=cls/"):  # each a name with a value that is looked at
        assert "hunter22" not in mask_text(word * 20_000 + " password=hunter22"), word


def test_colours_and_escapes_hide_no_key() -> None:
    key = "hf_" + "a1" * 17
    texts = [f"\x1b[36m{key}\x1b[0m", f"text\\n{key}", f"x%0A{key}", f"token%3D{key}", "password=\x1b[1mhunter2x1\x1b[0m"]
    assert [text for text in texts if key in mask_text(text) or "hunter2x1" in mask_text(text)] == []
    assert mask_text("password=" + "x9" * 5000) == f"password={MASK}"


def test_bytes_that_are_no_text_stay() -> None:
    data = bytes(range(256)) + b" password=hunter22 " + bytes(range(255, -1, -1))
    assert mask_bytes(data, ()) == data.replace(b"hunter22", MASK.encode())
