"""Secrets in the unusual forms that tools write them in; and lines of training logs, which stay.

`REPORTED` and `STAYS` are what others found. `UNSEEN` and `LOG_LINES` were written in three parts, each before anyone looked
at what becomes of it. At first 15 of 73, 8 of 75 and 6 of 68 secrets were shown, and 0, 2 and 2 of about 60 log lines masked
each; these kinds were mended then.
A `¶` is the end of a line, a `→` is a tab.
"""

from __future__ import annotations

import json

import pytest

from support.secret_texts import A20, A36, HEX32, HEX40, JWT, blanked, missed
from trainshed.base.secret_shapes import MASK
from trainshed.base.secrets import mask_mapping, mask_text, mask_value, secret_values

pytestmark = pytest.mark.safety
MOST_MISSED, MOST_BLANKED = 2, 1

REPORTED = f"""
['train.py', '--api-key', '<<hunter2x>>', '--epochs', '3']
["python", "train.py", "--api-key", "<<plainword>>"]
{{"cmd": ["train.py", "--hub-token", "<<{A20}>>"]}}
args: {{\\"argv\\": [\\"--password\\", \\"<<hunter2>>\\"]}}
("api_key", "<<hunter2>>")
[('user', 'me'), ('password', '<<hunter2>>')]
wandb.login(key='<<hunter2x>>')
wandb.login(anonymous="never", key="<<{HEX40}>>")
login(token="<<opaque>>")
huggingface_hub.login("<<{A20}>>")
Client(token=SecretStr('<<hunter2hunter2>>'))
password=pydantic.SecretStr("<<plainword>>")
api key: <<hunter2x>>
Your API key is <<hunter2x>>.
The access token was '<<{A20}>>'
Password for bob: <<hunter2>>
Using token <<{A20}>>
Logged in with api key <<{HEX32}>>
export API_KEY=$'<<it\\'s secret>>'
ENV API_TOKEN <<plainword>>
Step 3/9 : ENV DB_PASSWORD <<hunter2>>
WANDB_API_KEY <<{HEX40}>>
wandb login <<{HEX40}>>
machine h login u password <<p1>>
machine h¶login u¶password <<plainword>>
default login anonymous password <<hunter2>>
password: !!str <<hunter2>>
api_key: !!str "<<plain words>>"
password: |¶  <<hunter2>>¶user: me
api_key→<<hunter2x>>
user→me→password→<<hunter2>>
<add key="ApiKey" value="<<plainword>>"/>
<add value="x" key="DbPassword" value='<<hunter2>>' />
<password><<plainword>></password>
<ns:apiKey encrypted="false"><<hunter2>></ns:apiKey>
| password | <<plainword>> |
[1] | db.password | <<hunter2>> |
│ password │ <<hunter2>> │
token%3D<<{A20}>>%26x%3D1
%7B%22password%22%3A%22<<hunter2>>%22%7D
ｐａｓｓｗｏｒｄ＝<<hunter2>>
password：<<hunter2>>
postgres://me:<<hun/ter2>>@db:5432/runs
redis://:<<s3/cr3t/>>@cache:6379/0
""".strip("\n").splitlines()

STAYS = """
tests/test_password.py::test_x[a]
tests/test_password.py::test_rotates_key[a1b2c3-d4] PASSED
Token::kPassword2: unexpected
docker run -u user:group image
docker run -u trainer:staff9 image train
srun --user bob:staff9 train.sh
sk-learn-something-v2
xai-explainable-models-for-vision-2
next token: 'Hello123World'
Predicted token: "Hello123World!"
{"token": "Hello123World", "logprob": -0.01}
/webhook/handlers/forward_hook_1a2b3c4d5e6f7a8b9c0d
File "/app/webhook/handlers/forward_hook_1a2b3c4d5e6f7a8b.py", line 3
http://user@host
git+ssh://git@github.com/org/repo.git
https://host:8080/path@v2/x
| user | password |
| password | string |
| user | password | role |
user→password→role
['password', 'username']
("token", "label")
['--password', '--verbose']
<password> is required
set password when asked
Password for bob:
API key is missing
an API key is what you need
Using token classification head
using key bias
ENV API_TOKEN $TOKEN
cache_key 9f86d081884c7d659a2feaa0c55ad015
wandb login succeeded
Please login (see the docs)
tokenize%3Dfalse
""".strip("\n").splitlines()

UNSEEN = f"""
kubectl create secret generic db --from-literal=password=<<hunter2x>>
kubectl config set-credentials me --token=<<{A20}>>
kind: Secret¶data:¶  password: <<aHVudGVyMg==>>¶  user: me
kubectl create secret docker-registry r --docker-username=me --docker-password=<<hunter2>>
env:¶  - name: DB_PASSWORD¶    value: <<hunter2>>
  + password = "<<hunter2>>"
terraform apply -var 'db_password=<<hunter2>>'
TF_VAR_api_token=<<{A20}>> terraform plan
git clone https://<<ghp_{A36}>>@github.com/o/r.git
git config --global http.extraheader "AUTHORIZATION: basic <<dXNlcjpodW50ZXIy>>"
remote.origin.url=https://me:<<hunter2>>@git.host/r.git
Looking in indexes: https://me:<<hunter2>>@pypi.corp/simple
twine upload -u __token__ -p <<pypi-{A36}{A36}>> dist/*
//registry.npmjs.org/:_password="<<aHVudGVyMg==>>"
npm config set //registry.corp/:_authToken <<{A20}>>
aws configure set aws_secret_access_key <<wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY>>
aws_session_token = <<IQoJb3JpZ2luX2VjEJr//////////wEaCXVzLWVhc3QtMSJH>>
"SecretAccessKey": "<<wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY>>",
aws rds create-db-instance --master-username me --master-user-password <<hunter2>>
aws cloudformation deploy --parameters ParameterKey=DbPassword,ParameterValue=<<hunter2>>
access_token: <<ya29.a0AfH6SMBx{A20}>>
{{"type": "authorized_user", "client_secret": "<<d-FL95Q19q7MQmFpd7hHD0Ty>>"}}
echo <<hunter2x>> | docker login -u me --password-stdin
docker login --username me --password <<hunter2>> reg.io
"auths": {{"reg.io": {{"auth": "<<bWU6aHVudGVyMg==>>"}}}}
docker run -e POSTGRES_PASSWORD=<<hunter2>> postgres
Step 4/9 : ARG NPM_TOKEN=<<{A20}>>
curl -H 'X-Vault-Token: <<s.{A20}>>' http://vault:8200
curl -H "PRIVATE-TOKEN: <<{A20}>>" https://gitlab/api
curl -d 'client_id=me&client_secret=<<hunter2x>>' https://auth.host
curl -d '{{"user":"me","password":"<<hunter2>>"}}' https://auth.host
curl -b 'session=<<abc123def456>>' https://host
psql "host=db user=me password=<<hunter2>> dbname=runs"
ALTER ROLE me WITH PASSWORD '<<hunter2>>';
mysqldump -u root -p<<hunter2>> runs
SET PASSWORD FOR 'me'@'%' = '<<hunter2x>>';
redis-cli -h cache -a <<s3cr3tpw>> ping
requirepass <<s3cr3tpw>>
mongosh --host db -u me -p <<hunter2>> --authenticationDatabase admin
db.createUser({{ user: "me", pwd: "<<hunter2>>", roles: [] }})
mongodb://me:<<hunter2>>@a:27017,b:27017/runs?replicaSet=rs0
SLACK_BOT_TOKEN: <<xoxb-123456789012-123456789012-{A20}>>
stripe.api_key = "<<sk_live_{A20}>>"
STRIPE_WEBHOOK_SECRET=<<whsec_{A20}>>
huggingface-cli login --token <<hf_{A20}{A20}>>
InferenceClient(model="gpt2", token='<<hf_{A20}{A20}>>')
snapshot_download(repo, use_auth_token="<<{A20}>>")
wandb login --relogin <<{HEX40}>>
wandb: Appending key for api.wandb.ai to your netrc file: <<{HEX40}>>
id_token=<<{JWT}>>
Set-Cookie: jwt=<<{JWT}>>; HttpOnly
-----BEGIN EC PRIVATE KEY-----¶<<MHcCAQEEIIGpX2q7Jx8K1v5v¶AwEHoUQDQgAEx1Y2z3A4b5C6d7E8>>¶-----END EC PRIVATE KEY-----
MAIL_PASSWORD="<<correct horse battery>>"
export SECRET_KEY='<<django-insecure-x7#k2$abc>>'
spring.datasource.password=<<hunter2>>
javax.net.ssl.keyStorePassword=<<changeit1>>
api_token = '<<{A20}>>'
[client]¶user = me¶password = <<hunter2>>¶host = db
$env:API_KEY = "<<{A20}>>"
ConvertTo-SecureString "<<hunter2x>>" -AsPlainText -Force
rclone config create s3 s3 access_key_id x secret_access_key <<wJalrXUtnFEMIK7MDENG>>
openssl rsa -passin pass:<<hunter2>> -in server.pem
az login --service-principal -u app -p <<{A20}~x>> --tenant t
helm install x --set auth.password=<<hunter2>>
web ansible_ssh_pass=<<hunter2>>
vault kv put secret/db password=<<hunter2>>
<server><username>me</username><password><<hunter2>></password></server>
<property><name>fs.s3a.secret.key</name><value><<wJalrXUtnFEMI>></value></property>
Config(user='me', password='<<hun"ter2>>', port=5432)
smtp.login("me", "<<hunter2x>>")
AZURE_CLIENT_SECRET: '<<aB1~{A20}>>'
https://host/cb#access_token=<<{A20}>>&token_type=bearer
GET /data?apikey=<<{HEX32}>>&q=1 HTTP/1.1
kubectl create secret generic db --from-literal password=<<hunter2x>>
kubectl set env deploy/web API_KEY=<<hunter2x>>
apiVersion: v1¶kind: Secret¶stringData:¶  api-token: "<<plain-words-here>>"
users:¶- name: me¶  user:¶    token: <<{JWT}>>
client-key-data: <<LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo=>>
variable "db_password" {{ default = "<<hunter2>>" }}
db_password = "<<hunter2>>" # terraform.tfvars
  ~ master_password = "<<hunter2>>" -> "other"
terraform {{ cloud {{ token = "<<{A20}.atlasv1.{A36}>>" }} }}
https://x-access-token:<<ghs_{A36}>>@github.com/o/r
git remote add o https://me:<<p/w0rd>>@git.host/r
git -c http.extraHeader="PRIVATE-TOKEN: <<{A20}>>" fetch
pip config set global.index-url https://me:<<hunter2>>@host/simple
[pypi]¶username = __token__¶password = <<pypi-{A36}{A36}>>
POETRY_HTTP_BASIC_CORP_PASSWORD=<<hunter2>>
poetry config pypi-token.pypi <<pypi-{A36}{A36}>>
UV_PUBLISH_TOKEN=<<pypi-{A36}{A36}>>
npm login --auth-type=legacy --password=<<hunter2>>
_auth=<<bWU6aHVudGVyMg==>>
yarn config set npmAuthToken <<{A20}>>
[default]¶aws_access_key_id = AKIAABCDEFGHIJKLMNOP¶aws_secret_access_key = <<wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY>>
{{"Credentials": {{"SessionToken": "<<IQoJb3JpZ2luX2VjEJr9{A36}>>"}}}}
aws secretsmanager create-secret --name db --secret-string <<hunter2x>>
aws ssm put-parameter --name /db/password --value <<hunter2x>> --type SecureString
gcloud auth print-access-token: <<ya29.{A36}>>
gcloud sql users set-password me --instance=db --password=<<hunter2>>
{{"private_key": "-----BEGIN PRIVATE KEY-----\\\\n<<MIIEvQIBADANBgkqhkiG9w0BAQEFAASC>>\\\\n-----END PRIVATE KEY-----\\\\n"}}
docker build --build-arg PIP_PASSWORD=<<hunter2>> .
docker secret: REDIS_PASSWORD_VALUE; ENV REDIS_PASSWORD=<<hunter2>>
services:¶  db:¶    environment:¶      - MYSQL_PASSWORD=<<hunter2>>
RUN echo "machine github.com login me password <<hunter2>>" > ~/.netrc
curl -sSfu me:<<hunter2>> https://host/api
curl --proxy-user me:<<hunter2>> https://host
curl "https://api.host/v1?access_token=<<{A20}>>&x=1"
curl -F client_secret=<<hunter2x>> -F grant_type=x https://host
wget --user=me --password=<<hunter2>> https://host/f
wget --header="X-Api-Key: <<short1key>>" https://host/f
http -a me:<<hunter2>> https://host/api
PGPASSWORD='<<hunter 2>>' psql -h db
CREATE ROLE me LOGIN PASSWORD '<<hunter2>>';
host=db port=5432 dbname=runs user=me password='<<hunter 2>>'
mysql --user=root --password=<<hunter2>> -e 'select 1'
[mysqld]¶master-password=<<hunter2>>
GRANT ALL ON *.* TO 'me'@'%' IDENTIFIED BY '<<hunter2>>';
rediss://default:<<{A20}>>@cache:6380
redis.Redis(host="cache", password="<<hunter2>>")
MongoClient("db", username="me", password="<<hunter2>>")
slack_sdk.WebClient(token="<<xoxp-123456789012-{A20}>>")
https://hooks.slack.com/triggers/<<T00000000/1234567890123/{HEX32}>>
STRIPE_SECRET_KEY=<<sk_test_{A20}>>
openai.api_key = "<<sk-{A36}>>"
ANTHROPIC_API_KEY=<<sk-ant-api03-{A36}-{A20}AA>>
HfApi(token="<<hf_{A20}{A20}>>")
hf auth login --token <<hf_{A20}{A20}>>
HUGGING_FACE_HUB_TOKEN: <<hf_{A20}{A20}>>
{{"wandb": {{"api_key": "<<{HEX40}>>"}}}}
Authorization=Bearer <<{JWT}>>
jwt.encode(payload, secret="<<hunter2x>>")
-----BEGIN PGP PRIVATE KEY BLOCK-----¶¶<<lQVYBF8x1Y2z3A4b5C6d7E8f9G0h1>>¶-----END PGP PRIVATE KEY BLOCK-----
SECRET_KEY_BASE=<<{HEX40}>>
REDIS_URL=redis://:<<hunter2>>@cache:6379/1
jdbc.password=<<hunter2>>
quarkus.datasource.password: <<hunter2>>
[auth]¶client_secret = "<<abc~def.ghi>>"
[server]¶admin_password = <<hunter2>> ; ini
$Password = '<<hunter2>>'
$env:AZURE_CLIENT_SECRET = '<<a~B8{A20}>>'
Set-Item -Path Env:API_KEY -Value "<<hunter2x>>"
net use Z: \\\\srv\\share /user:me <<hunter2x>>
CLEARML_API_SECRET_KEY=<<{A36}>>
comet_ml.init(api_key='<<{A20}>>')
NEPTUNE_API_TOKEN="<<eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkifQ==>>"
SENDGRID_API_KEY = SG.<<{A20}ab.{A36}ab>>
DATABRICKS_TOKEN=<<dapi{HEX32}>>
kaggle.json: {{"username":"me","key":"<<{HEX32}>>"}}
kubectl --token <<{A20}>> get pods
kubectl create secret generic x --from-literal='api-key=<<hunter2x>>'
  env:¶  - name: AWS_SECRET_ACCESS_KEY¶    value: "<<wJalrXUtnFEMI/K7MDENG/bPxRfiCY>>"
helm upgrade app chart --set-string db.password=<<hunter2>>
argocd login host --username admin --password <<hunter2>>
vault login <<hvs.CAESI{A20}{A20}>>
VAULT_TOKEN=<<s.{A20}>>
consul kv put db/password <<hunter2x>>
output "token" = "<<{A36}>>"
resource "aws_db_instance" "x" {{ password = "<<hunter2>>" }}
export TF_VAR_master_password=<<hunter2>>
git push https://me:<<ghp_{A36}>>@github.com/o/r.git main
fatal: could not read from 'https://oauth2:<<glpat-{A20}>>@gitlab.com/o/r'
credential.helper store: https://me:<<p@ss>>@host
pip install git+https://<<{A20}>>@github.com/o/r.git
export PIP_INDEX_URL=https://u:<<hunter2>>@nexus/simple
conda config --set channel_alias https://host/t/<<tk-{A20}>>/
npm ERR! //npm.pkg.github.com/:_authToken=<<ghp_{A36}>>
NPM_TOKEN=<<npm_{A36}>> npm publish
"//registry/": {{ "npmAuthToken": "<<{A20}>>" }}
aws sts: AccessKeyId=x SecretAccessKey=<<wJalrXUtnFEMI/K7MDENG>> SessionToken=y
boto3.client("s3", aws_access_key_id="x", aws_secret_access_key="<<wJalrXUtnFEMI>>")
Session(aws_session_token='<<IQoJb3JpZ2lu{A20}>>')
gcloud auth activate-refresh-token me <<1//0{A36}>>
{{"refresh_token": "<<1//0{A36}>>"}}
az storage blob upload --account-key <<{A36}==>> --file x
az acr login --username u --password <<hunter2>>
AZURE_STORAGE_KEY=<<{A36}==>>
docker run --env MYSQL_PASSWORD=<<hunter2>> mysql
docker service create --secret id=x --env TOKEN=<<{A20}>> app
"credsStore": "", "identitytoken": "<<{JWT}>>"
ENV HF_TOKEN=<<hf_{A20}{A20}>>
ARG GITHUB_TOKEN=<<ghp_{A36}>>
curl -H "Authorization: Token <<{A20}>>" https://h
curl -H 'Api-Key: <<{A20}>>' https://h
curl --oauth2-bearer <<{A20}>> https://h
curl -u 'me:<<hun ter2>>' https://h
curl https://h -d password=<<hunter2>>
requests.post(url, auth=("me", "<<hunter2x>>"))
httpx.Client(headers={{"X-API-Key": "<<{A20}>>"}})
psycopg2.connect(host="db", user="me", password="<<hunter2>>")
create_engine("postgresql+psycopg://me:<<hunter2>>@db/x")
DATABASE_URL=postgres://me:<<hunter2>>@db:5432/x
ALTER USER me IDENTIFIED WITH mysql_native_password BY '<<hunter2>>';
mysql -h db -ume -p<<hunter2>> x
mongodump --username me --password <<hunter2>>
redis-cli -u redis://default:<<hunter2>>@h:6379
CONFIG SET requirepass "<<s3cr3tpw>>"
slack token: <<xoxb-123456789012-{A20}>>
SLACK_WEBHOOK=<<https://hooks.slack.com/services/T0/B0/{A20}>>
Stripe(api_key="<<sk_test_{A20}>>")
HfFolder.save_token("<<hf_{A20}{A20}>>")
wandb.login(relogin=True, key="<<{HEX40}>>")
wandb_key: <<{HEX40}>>
"access_token":"<<{A20}>>","expires_in":3600
set-cookie: auth=<<{A36}>>; Path=/
-----BEGIN ENCRYPTED PRIVATE KEY-----¶<<MIIFHDBOBgkqhkiG9w0BBQ0wQTApBgkq>>¶-----END ENCRYPTED PRIVATE KEY-----
DJANGO_SECRET_KEY = '<<x7#k2$abc-defghij>>'
app.config['SECRET_KEY'] = '<<x7k2abcdefghij>>'
ssl.keystore.password=<<changeit1>>
sasl.jaas.config=org.X required username="u" password="<<hunter2>>";
[smtp]¶user = me¶pass = <<hunter2>>
password = "<<hunter2>>" # toml
$cred = "<<hunter2x>>" | ConvertTo-SecureString -AsPlainText
[Environment]::SetEnvironmentVariable("API_KEY", "<<hunter2x>>")
setx OPENAI_API_KEY "<<sk-{A36}>>"
ansible-playbook -e "db_password=<<hunter2>>"
ORACLE_PWD=<<hunter2>>
""".strip("\n").splitlines()

LOG_LINES = """
step 1200 | loss 2.3412 | lr 3.0e-04 | grad norm 0.81 | tokens/s 51234
[rank0]: iter 30/1000 train_loss=3.1214 val_loss=3.2012 tokens_seen=1966080
{"loss": 1.2345, "grad_norm": 0.52, "learning_rate": 4.9e-05, "epoch": 0.12, "num_tokens": 131072}
The tokenizer class you load from this checkpoint is 'LlamaTokenizer', which differs from 'PreTrainedTokenizerFast'
Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.
Setting `pad_token_id` to `eos_token_id`:50256 for open-end generation.
Using pad_token, but it is not set yet.
Using token embeddings of size 32000x4096
Using key GatedAttention2Block in registry
top-5 next tokens: ['Hello123World', ' the', ' a']
predicted token: 'Berlin2024Games' (p=0.31)
token id 1532 -> 'ĠParis'
generated: key: value1, password: how do I reset it?
number of trainable tokens: 1.2B, key/value heads: 8
past_key_values=DynamicCache(layers=32)
loading weights file model.safetensors from cache at hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e
git commit 607a30d783dfa663caf39e06633721c8d4cfcd7e (HEAD -> main, origin/main)
commit: 2c734f4 tests: let the judge of hostile cases meet a rank that is gone
Resolved revision main to 3f1a9c0b7d5e42f6a8b1c2d3e4f5a6b7c8d9e0f1
wandb: Tracking run with wandb version 0.18.3
wandb: Syncing run dazzling-sunset-12
wandb: View run at https://wandb.ai/team/project/runs/3k2j1h4g
Traceback (most recent call last):
  File "/opt/conda/lib/python3.11/site-packages/transformers/tokenization_utils_base.py", line 2684, in encode
  File "/opt/ml/code/password_strength/train.py", line 88, in forward_hook_v2
KeyError: 'encoder.layers.0.self_attn.in_proj_weight_1'
RuntimeError: Error(s) in loading state_dict for GPT2LMHeadModel: Missing key(s): "transformer.h.0.attn.bias2"
huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to model meta-llama/Llama-2-7b is restricted.
OSError: You are trying to access a gated repo. Make sure to pass a token having permission, use `token=<your_token>`
ValueError: api_key client option must be set either by passing api_key to the client or by OPENAI_API_KEY
tests/test_tokens.py::test_secret_token_roundtrip[utf8-v2] PASSED
FAILED tests/auth/test_login.py::TestPassword::test_hash2 - AssertionError: assert 1 == 2
docker run --rm -u trainer:staff9 -v /data:/data image:2.1 train
sbatch --user bob:gpu2 --account=ml2024 job.sh
srun: job 4821 queued and waiting for resources, user=bob
ssh: connect to host worker-3 port 22: Connection refused
Downloading https://download.pytorch.org/models/resnet50-0676ba61.pth to /root/.cache/torch/hub/checkpoints
Fetching http://mirror@data.host/part-00012.tar
NCCL INFO comm 0x55d1c0a2 rank 3 nranks 8 cudaDev 3 busId 1d000 - Init COMPLETE
NCCL INFO NET/OFI Using aws-ofi-nccl 1.9.1
[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111)
INFO:root:forward pass 12.1ms, backward pass 24.3ms, optimizer 3.2ms
pass 1: 98.2% of 60000, pass 2: 99.1%
registered hook /webhook/handlers/forward_hook_1a2b3c4d5e6f7a8b.py
Saved to runs/exp-key-ablation-2024-11-28/checkpoint-1200/model.pt
Model: sk-learn-something-v2, features: 30
xai-explainable-vision-models 3 of 12 done
dataset key=images/train2017/000000391895.jpg shape=(480, 640, 3)
S3 key: datasets/imagenet/train/n01440764/part-00017.tar
cache key: tokenized-8f14e45fceea167a5a36dedd4bea2543
config hash 8f14e45fceea167a5a36dedd4bea2543, seed 1234567890
auth: none, connection: 10.0.0.5:6379 ready
| key | value |
| lr | 0.0003 |
| max_tokens | 4096 |
attn.q_proj key_proj→torch.Size([1024, 1024])
vocab size→50257→tokens→1.3e9
password_embedding.weight→(768, 32)
basic_tokenizer: whitespace2
<s> The password is a word that users choose </s>
Question: What is my API key? Answer: An API key is something you ask for in your settings.
  "token": "Hello123World", "logprob": -0.0012
bearer of the ring, chapter 12: The Key to Erebor
Sampled: 'secret agents, key figures and token gestures'
@pytest.mark.parametrize("token", ["a1", "b2"])
cls_token shape (1, 1, 768), mask_token torch.float32
Epoch 1: 100%|██████████| 938/938 [00:12<00:00, 75.3it/s, v_num=0, train_loss=0.123, tokens=1.2e6]
{'train_runtime': 123.4, 'train_samples_per_second': 81.0, 'train_tokens_per_second': 12000.5}
trainable params: 4,194,304 || all params: 6,742,609,920 || trainable%: 0.0622
Using the `WANDB_DISABLED` environment variable is deprecated. Use the --report_to flag to control the integrations
Token indices sequence length is longer than the specified maximum sequence length for this model (1523 > 1024)
token 17: 'Hello123' -> 15496
<|im_start|>user¶What is a secret key?<|im_end|>
| token | count |
| the | 120394 |
| metric | value |
| key_dim | 64 |
tokens│1.2M
query_key_value 4096x12288
last_key 000123 first_key 000000
monitor val_acc1 mode max
sort_key user_id_2
wte.weight→[50257, 768]→bf16
--tokenizer_name bert-base-cased-v2 --max_tokens 512
['--tokenizer', 'gpt2-xl', '--pad-token-id', '0']
("pad_token", "<pad>"), ("eos_token", "</s2>")
{"name": "pad_token", "value": "[PAD]"}
{"key": "loss", "value": "0.1234abc"}
<token>hello</token>
<key>layer.0.weight1</key>
<value>0.123</value>
Sampling with token budget 4096
Using key/value cache of 2GB
using token_type ids2 for pairs
Please log in with your account. API key: https://wandb.ai/authorize
wandb: Paste an API key from your profile and hit enter, or press ctrl+c to quit:
wandb: Currently logged in as: bob (team-ml2024). Use `wandb login --relogin` to force relogin
Login successful: user bob2024
login(user) took 12ms
login node: login-01.cluster.example.org
ssh login-node-1 uptime
password-protected zip files: 0
no password is needed for sudo
The password is incorrect 3 times
secrets.py:42: DeprecationWarning: token_hex2 is old
File "/usr/lib/python3.11/secrets.py", line 56, in token_bytes
  password = getpass.getpass(prompt="Password: ")
    return self.auth_backend.check(password, user2)
tests/test_keys.py::TestKeys::test_api_key[v1-abc123def456] SKIPPED
pytest tests/auth -k "token and not password2"
models/password-classifier-v2/checkpoint-500/pytorch_model.bin
/data/tokens/part-0001.bin has 1000000 tokens
hash: 607a30d783dfa663caf39e06633721c8d4cfcd7e
git rev-parse HEAD 607a30d783dfa663caf39e06633721c8d4cfcd7e
Cloning into 'repo'... remote: Enumerating objects: 1234, done.
From https://github.com/org/repo * branch main -> FETCH_HEAD
pip install torch==2.4.0+cu121 --index-url https://download.pytorch.org/whl/cu121
Requirement already satisfied: keyring==24.3.0
Successfully installed tokenizers-0.20.1 pyjwt-2.8.0 cryptography-42.0.5
mount -t nfs -o user=bob,rw host:/export /mnt
rsync -au host:dir2 .
ps -u bob2:staff
sort -u file:part2
mkdir -p runs2 && docker run -u 1000:100 -p 8888:8888 image
squeue -u bob -p gpu2
oc get pods -p 2
curl -L https://data.host/imagenet.tar -o data.tar
s3://bucket:443/a@b/c
mlflow: logged param optimizer_key=adamw2
hook_handle=RemovableHandle at 0x7f8a1b2c3d4e
register_forward_hook(hook) -> hook_id=3
cookie: the fortune teller said 12
ConnectionResetError: [Errno 104] Connection reset by peer
passenger_count=4, compass_heading=12.5deg
step=10 loss=3.2 ppl=24.5 tok/s=12.3k mem=31.2GB
{"step": 10, "tokens": 40960, "lr": 0.0003, "loss/train": 2.31}
[INFO|tokenization_utils_base.py:2021] loading file tokenizer.json from cache at /root/.cache/tok-v2
[WARNING|logging.py:314] Special tokens have been added in the vocabulary
Generated token ids: [50256, 198, 464]
decoded: 'The key insight is that tokens2vec'
Using device: cuda:0, dtype bf16
using tokenizer Qwen2TokenizerFast with 151665 tokens
Model has 32 layers, 8 key-value heads
Loading pretrained weights from hub (sha 7ae557604adf67be50417f59c2c2f167def9a775)
HEAD is now at 7ae5576 fix: token count
Merge branch 'fix-auth-token2' into main
Author: bob2024 <bob@host.example>
File "/app/auth/token_store2.py", line 3, in get_token
KeyError: 'input_ids2'
AssertionError: key mismatch: got q_proj1, expected k_proj2
torch.Size([2, 12, 64]) key.shape
RuntimeError: Expected key.size(1) == value.size(1)
  (k_proj): Linear(in_features=4096, out_features=1024, bias=True)
self.key_norm2.weight grad 1.2e-3
INFO: 10.0.0.5:45678 - "GET /health HTTP/1.1" 200 OK
10.0.0.1 - - "GET /v1/tokens/count?n=12345 HTTP/1.1" 200
cache hit rate 98% key=1234abcd
Dataset({features: ['text', 'key'], num_rows: 1000})
Map (num_proc=4): 100%|####| 1000/1000 [00:01<00:00, 900.12 examples/s]
pip: Collecting tokenizers<0.21,>=0.20 Downloading tokenizers-0.20.3-cp311.whl (3.0 MB)
Processing /wheels/PyJWT-2.8.0-py3-none-any.whl
conda env: pytorch-auth2
job token-train-2024 submitted as 48213
srun -u -n 4 python2 train.py
docker exec -u root:root box ls
chown -R user2:group3 /data
rsync -e ssh -u host:dir2 /x
wandb sync wandb/offline-run-20241128_101010-abc123de
https://wandb.ai/team/proj/runs/abc123de
mlflow.set_tracking_uri("http://mlflow:5000")
s3://bucket/data/secrets-of-the-sea/part1.parquet
gs://bucket/keys/part-0001
hdfs://nn:8020/user/auth2/x
/webhooks/handlers/on_token_2f3a4b5c6d7e8f90.py
register_full_backward_hook(hook_12345678)
cookie monster ate 12 cookies
next token: " Paris2024"
| step | loss | tokens |
| 100 | 2.31 | 409600 |
| api_key | str |
| password_strength | 0.98a1 |
tokens_seen→1234567→step→12
key→value1
ENV PATH /opt/conda/bin:$PATH
ENV TOKENIZERS_PARALLELISM false
set epochs 12
password policy: at least 12 characters
The secret is in the sauce2go
Enter password for key '/root/.ssh/id_rsa':
Permission denied (publickey,password).
debug1: Authentications that can continue: publickey,password
sk-image-processing-utils-v10
test_secrets.py::test_api_key_is_hidden[case-12] PASSED
Saving model checkpoint to out/checkpoint-token-1200
""".strip("\n").splitlines()


def written(texts: list[str]) -> list[str]:
    return [text.replace("¶", "\n").replace("→", "\t") for text in texts]


def test_the_forms_that_others_found_are_masked() -> None:
    assert missed(written(REPORTED)) == []


def test_what_others_saw_masked_for_nothing_stays() -> None:
    assert blanked(written(STAYS)) == []


def test_secrets_in_lists_and_pairs_are_masked_and_known_by_their_value() -> None:
    given = {"args": ["--api-key", "plainword", "--x", "1"], "env": [{"name": "API_KEY", "value": "otherword"}]}
    shown = {"args": ["--api-key", MASK, "--x", "1"], "env": [{"name": "API_KEY", "value": MASK}]}
    assert mask_mapping(given) == shown
    assert mask_text(json.dumps(given), secret_values(given)) == json.dumps(shown)
    assert mask_value('["--api-key", "plainword"]') == json.dumps(["--api-key", MASK])
    assert mask_value([("api_key", "plainword"), ("lr", 1), ("password", "token")]) == [
        ["api_key", MASK],
        ["lr", 1],
        ["password", "token"],
    ]


def test_secrets_in_forms_that_nobody_had_in_mind_are_masked() -> None:
    assert len(UNSEEN) >= 60
    found = missed(written(UNSEEN))
    assert len(found) <= MOST_MISSED, "\n".join(found)


def test_lines_of_training_logs_stay() -> None:
    assert len(LOG_LINES) >= 60
    found = blanked(written(LOG_LINES))
    assert len(found) <= MOST_BLANKED, "\n".join(found)
