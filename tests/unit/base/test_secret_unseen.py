# ruff: noqa: E501 - a line is a text
"""Secrets in forms that nobody had written down, in job files, logs, shells and tracebacks; and lines that look alike.

`PROBES` are spellings that the reader of names and values is to know. The others were written one after the other, each
before anyone looked at what becomes of it, and its kinds mended then. Shown at first: 17 of 95 secrets of the first, 4 of 100
of the second, 9 of 102 of the third, 4 of 78 of the fourth and 3 of 63 of the fifth; masked at first: 7 of 64, 5 of 68, 3 of 68,
1 of 61 and 4 of 60 lines. The expressions before them had shown 26, 23, 28, 19 and 12, and masked 7, 2, 3, none and 1.
A `¶` is the end of a line.
"""

from __future__ import annotations

import pytest

from support.secret_texts import blanked, missed
from trainshed.base.secret_looks import is_random

pytestmark = pytest.mark.safety
MOST_MISSED, MOST_BLANKED = 4, 1  # of a hundred, of sixty

HEX_PROBES = "9be1f03a7c2d46581fae90c4d3b27e65"
R24_PROBES = "m4Xv9Tq2Lz7Rb1Kc8WnYd3Hs"

PROBES = f"""
<<violet11x>>  # db password
use '<<violet11x>>' as the password
the new password for bob is: <<violet11x>>
password → <<violet11x>>
password .......... <<violet11x>>
pw:<<violet11x>>
Pass - <<violet11x>>
password = \"\"\"¶<<violet11x>>¶\"\"\"
args:¶  - --api-key¶  - <<violet11x>>
args:¶  - train.py¶  - "--password"¶  - "<<violet11x>>"
cmdkey /add:h /user:u /pass:<<violet11x>>
password: {{value: <<violet11x>>}}
"password" : {{ "value" : "<<violet11x>>" }}
<input type="password" name="pw" value="<<violet11x>>">
**Password:** <<violet11x>>
`password`: `<<violet11x>>`
<b>Password</b>: <<violet11x>>
user[password]=<<violet11x>>&commit=1
user%5Bpassword%5D=<<violet11x>>&commit=1
(setq db-password "<<violet11x>>")
{{password, "<<violet11x>>"}}
const t = process.env.API_TOKEN || '<<violet11x>>'
if password == "<<violet11x>>":
assertEqual(password, "<<violet11x>>")
login: bob / <<violet11x>>
credentials: bob:<<violet11x>>
creds = bob/<<violet11x>>
user/pass: bob/<<violet11x>>
Username/password: bob/<<violet11x>>
SECRETS='{{"db": "<<violet11x>>"}}'
"credentials": {{"user": "bob", "x": "<<violet11x>>"}}
password=<<12345678>>
password: "<<20241128>>"
private key: <<0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80>>
user,password¶bob,<<violet11x>>
id;name;api_key¶1;bob;<<{R24_PROBES}>>
| user | password |¶|---|---|¶| bob | <<violet11x>> |
user=bob password=<<violet11x>> host=db
password="<<violet>>" level=info
password := <<violet11x>>
password <- "<<violet11x>>"
password ?= <<violet11x>>
DB_PASSWORD:<<violet11x>>
export "DB_PASSWORD=<<violet11x>>"
env DB_PASSWORD=<<violet>> python train.py
[password]: <<violet11x>>
PASSWORD\\n<<violet11x>>\\n
db.password.value=<<violet11x>>
secret_value: <<violet11x>>
password_value = "<<violet11x>>"
pass_phrase: <<violet11x>>
passwd_new=<<violet11x>>
rootpassword: <<violet11x>>
root_pw=<<violet11x>>
userpw: <<violet11x>>
loginPass: <<violet11x>>
login_pass="<<violet11x>>"
mysqlPwd=<<violet11x>>
cookie_secret=<<violet11x>>
signing_secret: <<violet11x>>
encryptionKey: "<<violet11x9>>"
aesKey = <<{HEX_PROBES}>>
hmac_key: <<{HEX_PROBES}>>
jwt_signing_key="<<violet-otter>>"
ssh_pass=<<violet11x>>
accessKeySecret: <<{R24_PROBES}>>
ACCESS_KEY_SECRET=<<{R24_PROBES}>>
APP_SECRET = "<<{HEX_PROBES}>>"
appSecret:<<{HEX_PROBES}>>
consumer_key=<<{R24_PROBES}>>
consumer_secret='<<{R24_PROBES}>>'
authToken => <<{HEX_PROBES}>>
bot_token = "<<123:violet11xyz>>"
csrf_token: <<{R24_PROBES}>>
session_key=<<{R24_PROBES}>>
session: <<{R24_PROBES}>>
X-Session-Id: <<{R24_PROBES}>>
-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkq<<hkiG9w0BAQEFAASCBKcwggSj>>\\n-----END PRIVATE KEY-----
oauth_token=<<{R24_PROBES}>>&oauth_token_secret=x
refresh: <<1//0g{R24_PROBES}>>
id_rsa contents: <<b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW>>
password:¶¶    <<violet11x>>
password was set to "<<violet11x>>"
password has been changed from <<violet11x>> to other
password for db=<<violet11x>>
db password (prod): <<violet11x>>
db password [prod]: <<violet11x>>
the db password, <<violet11x>>, is used
password "<<violet11x>>" rejected
password '<<violet>>' rejected
--password=<<violet>>
--password "<<violet otter>>"
-password <<violet11x>>
-pw <<violet11x>>
-token <<{R24_PROBES}>>
/password:<<violet11x>>
:password: <<violet11x>>
@password = <<violet11x>>
$password = "<<violet>>"
&password=<<violet>>
"&password=<<violet11x>>&x"
\\"password\\":\\"<<violet11x>>\\"
\\\\\\"password\\\\\\":\\\\\\"<<violet11x>>\\\\\\"
{{"key":"password","value":"<<violet11x>>"}}
{{"value":"<<violet11x>>","name":"password"}}
{{"name":"DB_PASSWORD","type":"plain","value":"<<violet11x>>"}}
- key: password¶  value: <<violet11x>>
- value: <<violet11x>>¶  name: DB_PASSWORD
""".strip("\n").splitlines()

HEX_FIRST = "d04c7be19f3a5826eb71f0c4a93d2b58"
R22_FIRST = "Gx5Rm9Tz2Lq7Wb1Kc8PnYd"
R40_FIRST = "wK7mQ2zLr9TxJ4nWc1YpVd6HsB8fEu3AoXiCtNqG"

FIRST = f"""
accelerate launch train.py --hub_token <<hf_{R40_FIRST}>> --push_to_hub
  "env": [ {{ "name": "WANDB_API_KEY", "value": "<<{HEX_FIRST}a1b2c3d4>>" }}, {{ "name": "LR", "value": "0.1" }} ]
environment:¶  - REDIS_PASSWORD=<<topaz-heron>>¶  - TZ=UTC
environment:¶  MINIO_ROOT_USER: minio¶  MINIO_ROOT_PASSWORD: <<topaz77heron>>
args: [--learning-rate, "3e-4", --wandb-key, "<<{HEX_FIRST}a1b2c3d4>>"]
CMD ["python", "serve.py", "--admin-password", "<<topaz77>>"]
HEALTHCHECK CMD redis-cli -a <<topaz77>> ping
ARG SSH_PRIVATE_KEY="-----BEGIN OPENSSH PRIVATE KEY-----¶<<b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9u>>¶-----END OPENSSH PRIVATE KEY-----"
Traceback (most recent call last):¶  File "t.py", line 3, in <module>¶    api = HfApi(token="<<hf_{R40_FIRST}>>")
KeyError: 'unknown field in {{"user": "bob", "passwd": "<<topaz77>>"}}'
ValidationError: 1 validation error for Settings¶db_password¶  Input should be a valid integer [type=int_parsing, input_value='<<topaz77heron>>', input_type=str]
psycopg.OperationalError: connection failed: host=db user=bob password=<<topaz77>> dbname=x
pymongo.errors.OperationFailure: bad auth mongodb+srv://bob:<<topaz77>>@c0.mongodb.net/
redis.exceptions.ConnectionError: Error 111 connecting to rediss://:<<topaz77heron>>@cache:6380
TypeError: login() got an unexpected keyword argument, kwargs={{'user': 'bob', 'passphrase': '<<topaz 77>>'}}
DEBUG:botocore.auth:StringToSign ... secret_key <<{R40_FIRST}>>
DEBUG httpcore http11 send_request_headers [(b'Authorization', b'Bearer <<{R22_FIRST}>>')]
DEBUG:openai._base_client: Request options: {{'headers': {{'api-key': '<<{HEX_FIRST}>>'}}}}
locals: token = '<<{R40_FIRST}>>', retries = 3
  |   password = '<<topaz77heron>>'
(Pdb) p self.api_key¶'<<{R40_FIRST}>>'
In [3]: os.environ["COMET_API_KEY"] = "<<{R22_FIRST}>>"
%env WANDB_API_KEY=<<{HEX_FIRST}a1b2c3d4>>
!huggingface-cli login --token <<hf_{R40_FIRST}>>
from google.colab import userdata  # secret is '<<topaz77heron>>'
$ read -s PW; PW=<<topaz77>>; export PW
$ history¶  501  export ANTHROPIC_API_KEY=<<sk-ant-api03-{R40_FIRST}{R40_FIRST}>>
set -gx OPENAI_API_KEY <<sk-proj-{R40_FIRST}>>
printenv | grep -i key¶DATADOG_API_KEY=<<{HEX_FIRST}>>
/proc/1/environ: LANG=C\\x00DB_PASSWORD=<<topaz77>>\\x00HOME=/root
ps: bob 4821 0.3 python sync.py --user bob --pass <<topaz77>> --once
systemd[1]: Environment=API_TOKEN=<<{R22_FIRST}>> LR=0.1
sudo: COMMAND=/usr/bin/mysql -uroot -p<<topaz77>>
audit: EXECVE argc=4 a0="curl" a1="-u" a2="bob:<<topaz77>>" a3="https://h"
crond: (bob) CMD (MAILPASS=<<topaz77>> /opt/send.sh)
nginx: proxy_set_header Authorization "Basic <<Ym9iOnRvcGF6Nzc=>>";
haproxy: user admin insecure-password <<topaz77>>
squid: cache_peer h parent 3128 0 login=bob:<<topaz77>>
http_proxy=http://bob:<<topaz77>>@proxy:3128
export HTTPS_PROXY="http://corp%5Cbob:<<topaz77>>@proxy:8080"
.npmrc: //npm.corp/:_authToken="<<{R22_FIRST}>>"
.pypirc¶[corp]¶repository: https://pypi.corp¶username: bob¶password: <<topaz77>>
pip.conf: index-url = https://__token__:<<glpat-{R22_FIRST}>>@gitlab/simple
conda: https://conda.anaconda.org/t/<<bo-{R22_FIRST}>>/main
Poetry: http-basic.corp = {{username = "bob", password = "<<topaz77>>"}}
cargo login <<cio{R40_FIRST[:32]}>>
gem push: :rubygems_api_key: <<rubygems_{HEX_FIRST}{HEX_FIRST[:16]}>>
gradle.properties: signing.password=<<topaz77>>
<server><id>nexus</id><username>bob</username><password><<{{COQJCE6DU6GtcS5P=}}>></password></server>
docker config: "auth": "<<Ym9iOnRvcGF6Nzc=>>"
aws sts output¶{{¶  "Credentials": {{¶    "SecretAccessKey": "<<{R40_FIRST}>>",¶    "Expiration": "2024-11-28T10:00:00Z"¶  }}¶}}
~/.aws/credentials: [default] aws_secret_access_key=<<{R40_FIRST}>>
gsutil config: gs_oauth2_refresh_token = <<1//0e{R40_FIRST}>>
boto: gs_secret_access_key = <<{R40_FIRST}>>
azcopy copy "https://a.blob.core.windows.net/c?sv=2023&sig=<<{R40_FIRST}%3D>>" .
az ad sp create: {{"appId": "1", "password": "<<Xy8~{R22_FIRST}>>", "tenant": "2"}}
rclone.conf¶[s3]¶type = s3¶secret_access_key = <<{R40_FIRST}>>
s3fs: passwd_file line AKIAABCDEFGHIJKLMNOP:<<{R40_FIRST}>>
fs.s3a.session.token=<<{R40_FIRST}{R40_FIRST}>>
spark.hadoop.fs.azure.sas.c.a.blob.core.windows.net=<<sv=2023-01-01&sig={R40_FIRST}>>
mlflow server --backend-store-uri postgresql://bob:<<topaz77>>@db/mlflow
clearml.conf: credentials {{ "access_key" = "K1", "secret_key" = "<<{R40_FIRST}>>" }}
neptune.init_run(api_token="<<eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8vYXBwLm5lcHR1bmUuYWkifQ==>>")
label_studio_sdk.Client(url=u, api_key='<<{HEX_FIRST}>>')
ray job submit --runtime-env-json '{{"env_vars": {{"HF_TOKEN": "<<hf_{R40_FIRST}>>"}}}}'
sky launch --env WANDB_API_KEY=<<{HEX_FIRST}a1b2c3d4>> task.yaml
modal secret create my-secret HF_TOKEN=<<hf_{R40_FIRST}>>
runpodctl config --apiKey <<{R40_FIRST}>>
vastai set api-key <<{HEX_FIRST}{HEX_FIRST}>>
lambda cloud: curl -u secret_job_<<{HEX_FIRST}>>: https://cloud.lambda/api
gh secret set NPM_TOKEN --body "<<npm_{R40_FIRST}>>"
glab auth login --token <<glpat-{R22_FIRST}>>
flyctl secrets set DB_PW=<<topaz77heron>>
heroku config:set SENDGRID_PASSWORD=<<topaz77>>
vercel env add: value of STRIPE_KEY is <<sk_live_{R22_FIRST}>>
doppler run --token=<<dp.st.prd.{R40_FIRST}>>
op read: credential = <<topaz77-heron!>>
bw unlock: export BW_SESSION="<<{R40_FIRST}{R40_FIRST}==>>"
pass show corp/db¶<<topaz77-heron!>>
LDAP bind as cn=admin with bindpw <<topaz77>>
binddn: cn=admin¶bindpw: <<topaz77>>
slapd: olcRootPW: <<{{SSHA}}{R40_FIRST}>>
snmpd.conf: rwcommunity <<topaz77>>
radius: secret = <<topaz77>>
wpa_supplicant psk=<<topaz77heron>>
IPsec: vpn.host : PSK "<<topaz77heron>>"
Wi-Fi password for GuestNet is <<topaz77heron>>
TOTP secret: <<JBSWY3DPEHPK3PXPJBSW>>
recovery codes: <<a1b2c-d3e4f>> g5h6i-j7k8l
kid=2 HS256 shared secret '<<topaz77heron>>'
Signing webhook with key whsec_<<{R40_FIRST}>>
Please save this password: <<topaz-heron-77>>
Temporary credentials -> user: bob, pass: <<topaz77>>
Login as admin/<<topaz77heron>> to continue
user bob authenticated using password <<topaz77>>
""".strip("\n").splitlines()

FIRST_LOOK_ALIKE = """
accelerate launch --num_processes 8 --mixed_precision bf16 train.py --tokenizer_name meta-llama/Llama-3.2-1B
  - name: HF_TOKEN¶    valueFrom:¶      secretKeyRef:¶        name: hf-secret-v2¶        key: token
env: [{"name": "TOKENIZERS_PARALLELISM", "value": "false1"}]
--secret id=hf_token,src=/run/secrets/hf_token_v2
RUN --mount=type=secret,id=npmrc2,target=/root/.npmrc npm ci
volumes: /home/bob2/.aws:/root/.aws:ro
WANDB_API_KEY: ${{ secrets.WANDB_API_KEY }}
password: !vault_ref secret/data/db#password2
password: "{{ lookup('env', 'DB_PASSWORD') }}"
HF_TOKEN=$(cat /run/secrets/hf_token_v2)
export API_KEY="$(aws secretsmanager get-secret-value --secret-id prod/api-key-2 --query SecretString --output text)"
db_password = var.db_password_v2
db_password = (sensitive value)
password_file: /etc/pg/pw2.txt
token_file = "/var/run/secrets/token2"
tokenFile: /var/lib/k3s/server/node-token
Using auth method kubernetes-2 with role trainer-v2
vault: Key Value: token_policies ["default" "ml-team-2"]
token_accessor    
lease_duration=768h renewable=true token_ttl=1h30m
WARNING! Your password will be stored unencrypted in /root/.docker/config.json.
Login Succeeded
Enter passphrase for key '/home/bob2/.ssh/id_ed25519_work':
debug1: Offering public key: /home/bob2/.ssh/id_ed25519 ED25519 SHA256:wK7mQ2zLr9TxJ4nWc1YpVd6HsB8fEu3AoXiCtNqGx0Y agent
debug1: Next authentication method: keyboard-interactive
sshd[4821]: Failed password for invalid user admin2 from 10.0.0.5 port 51234 ssh2
sshd[4821]: Accepted publickey for bob2 from 10.0.0.5 port 51234 ssh2: RSA SHA256:wK7mQ2zLr9TxJ4nWc1YpVd6HsB8fEu3AoXiCtNqGx0Y
CRON[1234]: pam_unix(cron:session): session opened for user root(uid=0) by (uid=0)
FATAL:  password authentication failed for user "mlflow2"
mlflow.exceptions.MlflowException: API request to endpoint /api/2.0/mlflow/runs/create failed with error code 401 != 200. Response body: 'You are not authenticated.'
HTTP/1.1 401 Unauthorized WWW-Authenticate: Bearer realm="https://auth.docker.io/token",service="registry.docker.io"
openai.AuthenticationError: Error code: 401 - {'error': {'message': 'Incorrect API key provided: sk-proj-********************abcd.', 'code': 'invalid_api_key'}}
anthropic.RateLimitError: 429 {"type":"error","error":{"type":"rate_limit_error"},"request_id":"req_011CSHoEeqs5C35K2UUqR7Fy"}
openai.BadRequestError: max_tokens=8192 exceeds limit for model gpt-4o-mini-2024-07-18
Authorization: Bearer $HF_TOKEN
curl -H "Authorization: Bearer ${TOKEN}" https://api.host
assert mask("password=abc123def") == "password=******"
parser.add_argument("--api-key", default=None, help="API key (default: env API_KEY2)")
api_key = api_key or os.environ.get("OPENAI_API_KEY")
self.token_embedding = nn.Embedding(vocab_size, d_model)
key, value = self.kv_proj(x).chunk(2, dim=-1)  # key: (B, T, H2)
tok2id = {tok: i for i, tok in enumerate(tokens)}
@app.get("/token", response_model=Token2)
class PasswordResetForm2(forms.Form):
  password = forms.CharField(widget=forms.PasswordInput(attrs={"class": "form-control2"}))
SELECT id, password_hash FROM users2 WHERE token_version = 3
ALTER TABLE users ADD COLUMN api_key VARCHAR(64) DEFAULT NULL;
CREATE INDEX idx_token_2 ON tokens (user_id2, created_at);
INSERT INTO users (id, name) VALUES (12, 'bob2024');
name,age,token_count¶bob2,31,1200
epoch,train_loss,key_acc1¶1,2.31,0.71
| model | tokens | pass@1 |¶|---|---|---|¶| llama3-8b | 1.2T | 0.45 |
Map tokens: 100%|██████████| 10000/10000 [00:03<00:00, 3012.45 examples/s]
[2024-11-28 09:00:00,123] [INFO] [config.py:1000:print]   zero_allow_untested_optimizer .... False
[2024-11-28 09:00:00,123] [INFO] [config.py:1000:print]   sparse_gradients_enabled ..... False
deepspeed: gradient_predivide_factor ... 1.0 communication_data_type ... None keys_to_ignore_at_rank_0 ... []
NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read comm 0x55d1c0a2e4f0 commId 0x5c9b1e7d2f4e8a9c
ncclUniqueId: 02a4f3c19e7d5b80 rank 0 nranks 8
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB
UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown: {'/mp-3k2j1h4g'}
model.embed_tokens.weight torch.bfloat16 [128256, 4096] md5=d04c7be19f3a5826eb71f0c4a93d2b58
Hugging Face blob 7d2f4e8a9c6b1f0e2d3c4b5a6978d04c7be19f3a -> ../../blobs/7d2f4e8a9c6b1f0e2d3c4b5a6978d04c7be19f3a
compiled graph fx key: fwk7mq2zlr9txj4nwc1ypvd6hsb8feu3aoxictnqgx0yabcdefgh
cudnn kernel: sm80_xmma_fprop_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4
""".strip("\n").splitlines()

HEX_SECOND = "8ac2e07bd94f1365c0be72a9d1f84e63"
A24_SECOND = "tZ8pK3vQ6mX1wR9yB4nJ7cH2"
B40_SECOND = "nB5vC8xZ2qW7eR4tY1uI9oP6aS3dF0gHjK2lM5nQ"

SECOND = f"""
wandb: ERROR API key must be 40 characters long, yours was <<{HEX_SECOND}>>
huggingface_hub.utils.HfHubHTTPError: 401, token used: <<hf_{B40_SECOND}>>
ERROR: Could not find a version (from https://ci:<<{A24_SECOND}>>@nexus.corp/simple)
fatal: unable to access 'https://bob:<<Marble-61-fox>>@git.corp/x.git/': SSL
The request signature we calculated does not match. SecretAccessKey=<<{B40_SECOND}>>
jwt.exceptions.InvalidSignatureError for token <<eyJhbGciOiJIUzI1NiJ9.eyJ1IjoiYm9iIn0.{A24_SECOND}>>
cryptography.fernet.InvalidToken key=b'<<{B40_SECOND[:43]}=>>'
Exception: bad password 'marble61fox' -> <<marble61fox>>
smtplib: send: 'AUTH PLAIN <<AGJvYgBtYXJibGU2MWZveA==>>'
paramiko.ssh_exception.AuthenticationException: bob:<<marble61fox>>@host
config = {{'sftp': {{'host': 'h', 'user': 'bob', 'pwd': '<<marble61fox>>'}}}}
cfg.db.password=<<marble61fox>>
+db.password=<<marble>> ++trainer.max_epochs=3
python train.py db.password=<<marble61fox>> trainer=gpu
hydra: overrides: ['wandb.api_key=<<{HEX_SECOND}a1b2c3d4>>', 'lr=0.1']
Trainer(logger=WandbLogger(api_key='<<{A24_SECOND}>>'), max_epochs=3)
mlflow params: {{"aws_secret": "<<{B40_SECOND}>>", "lr": "0.1"}}
{{"hyperparameters": {{"hub_token": "<<hf_{B40_SECOND}>>", "epochs": 3}}}}
SM_HPS={{"hub_token":"<<hf_{B40_SECOND}>>","epochs":3}}
SM_HP_API_KEY=<<{A24_SECOND}>>
SM_USER_ARGS=["--api_key","<<{A24_SECOND}>>","--epochs","3"]
Invoking script with: /opt/conda/bin/python train.py --api_key <<{A24_SECOND}>> --epochs 3
TrainingJob Environment: {{HF_TOKEN: <<hf_{B40_SECOND}>>, LR: 0.1}}
PAI_HP_TOKEN: <<{A24_SECOND}>>
AZUREML_TOKEN=<<{A24_SECOND}{A24_SECOND}>>
vertex: --env-vars=DB_PASS=<<marble61fox>>,X=1
qsub -v DB_PASSWORD=<<marble61fox>>,LR=1 job.pbs
bsub -env "all, API_TOKEN=<<{A24_SECOND}>>" ./run
torchrun --nproc 8 train.py --s3-secret <<{B40_SECOND}>>
horovodrun -x AWS_SECRET_ACCESS_KEY=<<{B40_SECOND}>> -np 4 python t.py
mpirun -x WANDB_API_KEY=<<{HEX_SECOND}a1b2c3d4>> python t.py
docker exec -e PGPASSWORD=<<marble61fox>> db psql
docker compose config: POSTGRES_PASSWORD: <<marble61fox>>
podman secret: printf <<marble61fox>> | podman secret create db -
kubectl create secret generic s --from-literal=apikey=<<{A24_SECOND}>>
kubectl patch secret s -p '{{"stringData":{{"password":"<<marble61fox>>"}}}}'
kubectl get secret s -o jsonpath={{.data.password}} | base64 -d¶<<marble61fox>>
helm get values: global.postgresql.auth.password: <<marble61fox>>
argocd admin initial-password¶<<tZ8pK3vQ6mX1wR9y>>
Password: <<tZ8pK3vQ6mX1wR9y>> (admin)
grafana admin user created, password=<<marble61fox>>
GF_SECURITY_ADMIN_PASSWORD: "<<marble61fox>>"
jenkins: *** initial admin password: <<{HEX_SECOND}>>
gitlab: Password: <<tZ8pK3vQ6mX1wR9yB4nJ7cH2iU5oP8aS>> # expires in 24h
minio RootUser: admin¶RootPass: <<marble61fox>>
elastic: The generated password for the elastic built-in superuser is :  <<tZ8pK3vQ6mX1wR9y>>
cassandra: CREATE USER bob WITH PASSWORD '<<marble>>' NOSUPERUSER;
clickhouse-client --user bob --password <<marble61fox>>
influx auth create: Token: <<{B40_SECOND}==>>
mongo: db.auth('bob', '<<marble61fox>>')
neo4j: NEO4J_AUTH=neo4j/<<marble61fox>>
rabbitmq: RABBITMQ_DEFAULT_PASS=<<marble61fox>>
couchdb: http://admin:<<marble61fox>>@127.0.0.1:5984
etcdctl --user root:<<marble61fox>> get x
zookeeper: addauth digest bob:<<marble61fox>>
nats://bob:<<marble61fox>>@nats:4222
mqtt: mosquitto_sub -h h -u bob -P <<marble61fox>> -t x
snowflake.connector.connect(user='bob', password='<<marble61fox>>', account='x')
databricks configure --token <<dapi{HEX_SECOND}>>
bq --service_account_private_key_password=<<marble61fox>> ls
export AWS_SESSION_TOKEN="<<IQoJb3JpZ2luX2VjE{B40_SECOND}>>"
$Env:AWS_SECRET_ACCESS_KEY="<<{B40_SECOND}>>"
setx /M DB_PASSWORD "<<marble61fox>>"
reg add HKLM\\X /v DefaultPassword /t REG_SZ /d <<marble61fox>>
ConvertTo-SecureString '<<marble61fox>>' -AsPlainText
<connectionStrings><add name="db" connectionString="Server=x;User Id=bob;Password=<<marble61fox>>"/>
<property name="connection.password"><<marble61fox>></property>
spring.mail.password: <<marble61fox>>
application.yml¶  datasource:¶    username: bob¶    password: ENC(<<{A24_SECOND}>>)
config/database.yml: production: {{ password: <<marble61fox>> }}
secret_key_base: <<{HEX_SECOND}{HEX_SECOND}>>
'secret' => env('APP_SECRET', '<<marble61fox>>'),
APP_KEY=base64:<<{B40_SECOND}=>>
$config['encryption_key'] = '<<marble61fox>>';
define( 'AUTH_KEY', '<<put|your@unique!phrase8>>' );
const stripe = require('stripe')('<<sk_test_{A24_SECOND}>>')
firebase: apiKey: "<<AIzaSyB{B40_SECOND[:32]}>>"
new Client({{ token: "<<{A24_SECOND}.abcdef.{B40_SECOND[:27]}>>" }})
client.login('<<{A24_SECOND}.abcdef.{B40_SECOND[:27]}>>')
bearerToken: <<{A24_SECOND}>>
"Authorization":"token <<{HEX_SECOND}a1b2c3d4>>"
x-vault-token: <<hvs.CAESI{B40_SECOND}>>
curl --cookie "auth_token=<<{A24_SECOND}>>" https://h
curl -d @- https://h <<< 'password=<<marble61fox>>'
http POST h password=<<marble61fox>>
grpcurl -H 'authorization: bearer <<{A24_SECOND}>>' h:443
websocat 'wss://h/ws?token=<<{A24_SECOND}>>'
ssh -o ProxyCommand='x' bob:<<marble61fox>>@host
sshfs -o password_stdin bob@h: /m <<< <<marble61fox>>
curlftpfs bob:<<marble61fox>>@ftp.h /m
mount.cifs //s/x /m -o user=bob,pass=<<marble61fox>>
openssl pkcs12 -in a.p12 -passin pass:<<marble61fox>>
openssl req -passout 'pass:<<marble61fox>>' -x509
zip -e -P <<marble61fox>> a.zip b
gpg --passphrase '<<marble 61 fox>>' --symmetric f
restic: RESTIC_PASSWORD=<<marble>> restic backup
borg: export BORG_PASSPHRASE='<<marble 61 fox>>'
ansible-vault: vault password: <<marble61fox>>
terraform.tfstate: "password": "<<marble61fox>>", "port": 5432
pulumi: db-password: <<marble61fox>>
""".strip("\n").splitlines()

SECOND_LOOK_ALIKE = """
wandb: Using wandb-core as the SDK backend. Please refer to https://wandb.me/wandb-core for more information.
wandb: (1) Create a W&B account (2) Use an existing W&B account (3) Don't visualize my results
wandb: W&B API key is configured. Use `wandb login --relogin` to force relogin
huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-67482f1a-3b5c7d9e1f2a4b6c8d0e2f4a;7c2d4658-1fae-90c4-d3b2-7e659be1f03a)
Fetching 7 files: 100%|██████████| 7/7 [00:00<00:00, 71089.78it/s]
Using the latest cached version of the dataset since imdb couldn't be found (offline mode)
tokenizer_config.json: 100%|██████████| 48.0/48.0 [00:00<00:00, 312kB/s]
/opt/conda/lib/python3.11/site-packages/transformers/models/auto/auto_factory.py:471: FutureWarning: The `use_auth_token` argument is deprecated, use `token` instead.
UserWarning: `do_sample` is set to `False`. However, `temperature` is set to `0.9`, key2=`x`
ValueError: Target modules {'q_proj', 'v_proj2'} not found in the base model. Please check key names
RuntimeError: Error(s) in loading state_dict: size mismatch for embed_tokens.weight: copying torch.Size([32001, 4096])
KeyError: 'model.layers.31.self_attn.k_proj.lora_A.default.weight'
ImportError: cannot import name 'PreTrainedTokenizerFast2' from 'transformers.tokenization_utils_fast'
SecretStr('**********')
Settings(db_password=SecretStr('**********'), port=5432)
Authentication token not found; continuing anonymously as anon-7f3c9b1e
Skipping login: user bob-2 already authenticated via oauth2
Loaded credentials from profile ml-dev-2 (source: SharedCredentialsProvider)
INFO:botocore.credentials:Found credentials in environment variables.
INFO:botocore.credentials:Found credentials from IAM Role: SageMakerExecutionRole-20241128T090000
INFO:google.auth.compute_engine._metadata: Compute Engine Metadata server retry 1 of 3
azure.identity: DefaultAzureCredential acquired a token from ManagedIdentityCredential
boto3: KMS key arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab
SSE-KMS KeyId=alias/ml-train-key-2 BucketKeyEnabled=true
VolumeKmsKeyId: mrk-8ac2e07bd94f1365c0be72a9d1f84e63
s3 put-object --key runs/2024/11/28/exp-a1b2c3/model.tar.gz --sse aws:kms
{"Key": "runs/a1b2c3d4/output.tar.gz", "ETag": "\\"8ac2e07bd94f1365c0be72a9d1f84e63-12\\"", "Size": 123}
NextContinuationToken: runs/part-0012
"NextToken": null, "ResponseMetadata": {"RequestId": "8ac2e07b-d94f-1365-c0be-72a9d1f84e63", "HTTPStatusCode": 200}
ClientRequestToken=train-2024-11-28
IdempotencyToken: job-4821-retry-2
sagemaker: Secondary status: Downloading - Downloading the training image 3.2GB
CreateTrainingJob: ParameterKey=LearningRate,ParameterValue=0.0003abc
kubectl: secret/hf-token-v2 created
kubectl: serviceaccount/trainer token-review-2 passed
Error: secret "wandb-api-key-v2" is invalid: metadata.name
cert-manager: Issuing certificate as Secret does not exist: train-tls-2
ingress: X-Forwarded-For 10.0.0.5, authority=train-2.corp:443
keepalive_timeout 65; keys_zone=cache2:10m
sshd: Server listening on 0.0.0.0 port 22, HostKey /etc/ssh/ssh_host_ed25519_key
ssh_host_rsa_key.pub: 3072 SHA256:tZ8pK3vQ6mX1wR9yB4nJ7cH2iU5oP8aSdF0gHjK2lM root@node2 (RSA)
passwd: files systemd
root:x:0:0:root:/root:/bin/bash
bob2:x:1001:1001:Bob,,,:/home/bob2:/bin/zsh
polkitd: Registered Authentication Agent for unix-session:c2 (system bus name :1.42)
gnome-keyring-daemon2: couldn't access control socket
pip: Successfully installed keyring-25.5.0 oauthlib-3.2.2 requests-oauthlib-2.0.0 python-dotenv-1.0.1
npm WARN deprecated crypto-token@1.0.2: use node:crypto
yarn: integrity sha512-tZ8pK3vQ6mX1wR9yB4nJ7cH2iU5oP8aSdF0gHjK2lM5nQtZ8pK3vQ6mX1wR9yB4nJ7cH2iU5oP8aSdF0gHjK2A==
go: github.com/golang-jwt/jwt/v5 v5.2.1 h1:OuVbFODueb089Lh128TAcimifWaLhJwVflnrgM17wHk=
Cargo.lock: checksum = "8ac2e07bd94f1365c0be72a9d1f84e638ac2e07bd94f1365c0be72a9d1f84e63"
commit 8ac2e07bd94f1365c0be72a9d1f84e638ac2e07b auth: rotate session keys (#4821)
8ac2e07 Merge pull request #482 from org/fix-token-refresh-v2
diff --git a/src/auth/token_store2.py b/src/auth/token_store2.py
+++ b/tests/test_password_hash2.py
def hash_password(password: str, rounds: int = 12) -> bytes:
const token = await getAccessToken({ scope: 'models:read2' });
logger.debug("refreshing token for %s", user2)
Prompt: "Write a function that checks whether a password has 8 characters, 1 digit"
Output: def is_strong(password): return len(password) >= 8 and any(c.isdigit() for c in password)
eval: passkey_retrieval_4k acc=0.98 | niah_multikey_2 acc=0.91 | kv_retrieval acc=0.77
gsm8k: 0.5123 | mmlu_security_studies: 0.61 | cybermetric_2000: 0.71
dataset: rockyou_statistics_v2 (password lengths), 14344391 rows
attention: flash_attention_2, num_key_value_heads=8, qk_norm=True, key_scale=0.125
optimizer keys: ['exp_avg', 'exp_avg_sq', 'step2'] missing
cache: hit key=8ac2e07bd94f1365 miss key=c0be72a9d1f84e63
memcached: STORED key user:bob2:profile 120 bytes
redis: SET session:count2 42 EX 3600
""".strip("\n").splitlines()

HEX_THIRD = "5e91c7d20a8b4f36e1d97c05ba28f463"
A24_THIRD = "hV4kR8sX2mC6wP0zB5qT9nL1"
B40_THIRD = "dF7gJ2kM9pQ4sV1xZ6bN3cR8tY5wA0eH7uL2iO9r"

THIRD = f"""
lightning: WandbLogger init failed with key=<<{HEX_THIRD}a1b2c3d4>>
2026-11-28 09:00:00 DEBUG settings loaded: db_user=bob db_password=<<quartz19elm>> db_host=h
[2026-11-28T09:00:00Z] INFO auth: issued access token <<{A24_THIRD}>> to bob
level=debug msg="request" header="X-Api-Key: <<{A24_THIRD}>>"
{{"level":"debug","headers":{{"authorization":["Bearer <<{A24_THIRD}>>"]}}}}
Calling POST https://api.h/v1/login body={{"email":"b@h.io","password":"<<quartz19elm>>"}}
curl: (22) https://api.h/v1?key=<<{A24_THIRD}>>&x=2
RuntimeError: failed to mount //srv/x with options username=bob,password=<<quartz19elm>>
subprocess.CalledProcessError: Command '['mysql', '-u', 'bob', '-p<<quartz19elm>>', 'db']' returned non-zero
subprocess.CalledProcessError: Command 'sshpass -p <<quartz19elm>> scp a h:' returned non-zero exit status 5
OSError: dsn was postgresql+asyncpg://bob:<<quartz19elm>>@db:5432/x
AssertionError: assert '<<quartz19elm>>' == os.environ['DB_PASSWORD']
E   AssertionError: Expected password 'abc', got '<<quartz19elm>>'
E         -  'password': '<<quartz19elm>>',
>       client = Client("bob", password="<<quartz19elm>>")
FAILED test_x.py::test_a - ValueError: invalid api_key '<<{A24_THIRD}>>'
@pytest.fixture def token(): return "<<{A24_THIRD}>>"
    DB_PASSWORD = "<<quartz19elm>>"  # noqa: S105
dataclass repr: Credentials(user='bob', secret='<<quartz19elm>>')
<Config api_key='<<{A24_THIRD}>>' region='x'>
S3FileSystem(key='AKIAABCDEFGHIJKLMNOP', secret='<<{B40_THIRD}>>')
storage_options={{'key': 'x', 'secret': '<<{B40_THIRD}>>', 'token': None}}
fsspec.filesystem('sftp', host='h', username='bob', password='<<quartz19elm>>')
pd.read_sql(q, 'mssql+pyodbc://sa:<<Quartz_19>>@h/db')
datasets.load_dataset("org/x", token="<<hf_{B40_THIRD}>>")
from_pretrained("org/x", use_auth_token='<<hf_{B40_THIRD}>>')
HfFolder: saved token <<hf_{B40_THIRD}>> to /root/.cache
aiohttp.BasicAuth('bob', '<<quartz19elm>>')
openai.OpenAI(api_key='<<sk-proj-{B40_THIRD}>>', base_url='https://h')
anthropic.Anthropic(api_key="<<sk-ant-api03-{B40_THIRD}>>")
os.putenv('RCLONE_CONFIG_X_SECRET_ACCESS_KEY', '<<{B40_THIRD}>>')
RCLONE_CONFIG_X_PASS=<<quartz19elm>>
export RCLONE_CONFIG_PASS=<<quartz19elm>>
FROM x AS y¶ENV HF_TOKEN=<<hf_{B40_THIRD}>> \\¶    LR=0.1
#8 [3/5] RUN curl -H "Authorization: token <<ghp_{B40_THIRD[:36]}>>" https://api.github.com
#9 0.321 + pip install -i https://bob:<<quartz19elm>>@idx/simple x
docker build --secret id=t,env=T --build-arg TOKEN=<<{A24_THIRD}>> .
docker inspect: "Env": ["PATH=/bin", "MONGO_INITDB_ROOT_PASSWORD=<<quartz19elm>>"]
docker-compose: command: redis-server --requirepass <<quartz19elm>>
compose: secrets: db: environment: "<<quartz19elm>>"
GitHub Actions: env:¶    GH_PAT: <<github_pat_11ABCDEFG0{B40_THIRD}>>
gitlab-ci: variables: {{ DEPLOY_TOKEN: "<<gldt-{A24_THIRD}>>" }}
bitbucket: curl -u bob:<<ATBB{A24_THIRD}>> https://bb
travis encrypt API_KEY="<<{A24_THIRD}>>"
buildkite: BUILDKITE_AGENT_TOKEN=<<{B40_THIRD}>>
drone: DRONE_RPC_SECRET=<<{HEX_THIRD}>>
jenkins: withEnv(['DB_PASS=<<quartz19elm>>']) {{
Masking failed, secret is <<quartz19elm>>
Slurm prolog: export MUNGE_KEY=<<{B40_THIRD}>>
sbatch: --comment="db password is <<quartz19elm>>"
squeue -o %o: python t.py --wandb_token=<<{HEX_THIRD}a1b2c3d4>>
srun: environment SLURM_JWT=<<eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjF9.{A24_THIRD}>>
apptainer remote login --password <<quartz19elm>> docker://x
kubectl logs: Using secret key <<{B40_THIRD}>>
kubectl describe: Command: python --token=<<{A24_THIRD}>>
kubectl config view --raw: password: <<quartz19elm>>
users:¶- user:¶    client-key-data: <<LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCk1IY0NBUUVF>>
valuesObject: {{auth: {{password: <<quartz19elm>>}}}}
helm: --set postgresql.postgresqlPassword=<<quartz19elm>>
istio: bearer-token=<<{A24_THIRD}>>
tf: random_password.db.result = "<<q!9zT#rt7>>"
TF_LOG: aws_access_key = "AKIAABCDEFGHIJKLMNOP", aws_secret_key = "<<{B40_THIRD}>>"
ansible: fatal: [h]: FAILED! => {{"invocation": {{"module_args": {{"login_password": "<<quartz19elm>>"}}}}}}
ansible_ssh_pass=<<quartz19elm>> ansible_user=bob
chef: node['db']['password'] = '<<quartz19elm>>'
puppet: password => Sensitive('<<quartz19elm>>'),
salt: pillar db:password: <<quartz19elm>>
vagrant: config.ssh.password = "<<quartz19elm>>"
cloud-init: chpasswd: list: | bob:<<quartz19elm>>
user-data: password: <<quartz19elm>>
kickstart: rootpw --plaintext <<quartz19elm>>
preseed: d-i passwd/root-password password <<quartz19elm>>
netplan: wifis: access-points: home: password: "<<quartz19elm>>"
nmcli dev wifi connect home password <<quartz19elm>>
openvpn: auth-user-pass¶bob¶<<quartz19elm>>
wg: PresharedKey = <<{B40_THIRD}abc=>>
ipsec: : PSK "<<quartz19elm>>"
snmpwalk -v3 -u bob -A <<quartz19elm>> -l authPriv h
ipmitool -I lanplus -H h -U admin -P <<quartz19elm>> power on
ldapwhoami -x -D cn=bob -w <<quartz19elm>>
net ads join -U admin%<<quartz19elm>>
kinit: echo <<quartz19elm>> | kinit bob
mysql> SET PASSWORD = '<<quartz19elm>>';
mysql: [Warning] --password=<<quartz19elm>> on the command line can be insecure
postgres=# ALTER USER bob PASSWORD '<<quartz19elm>>';
psql: \\connect "dbname=x user=bob password=<<quartz19elm>>"
sqlite> INSERT INTO creds(user,password) VALUES('bob','<<quartz19elm>>');
sqlcmd -S h -U sa -P <<Quartz-19>>
mongosh "mongodb://h" --username bob --password <<quartz19elm>>
redis-cli -h h --pass <<quartz19elm>> ping
redis: ACL SETUSER bob on ><<quartz19elm>> ~*
kafka: security: sasl.jaas.config: ScramLoginModule required username="b" password="<<quartz19elm>>";
rabbit: {{"password": "<<quartz19elm>>", "tags": "administrator"}}
s3cmd: secret_key = <<{B40_THIRD}>>
aws configure: AWS Secret Access Key [None]: <<{B40_THIRD}>>
gcloud: account key "private_key_id": "<<{HEX_THIRD}a1b2c3d4>>"
az login -u b@x.io -p '<<Quartz-19>>'
b2 authorize-account 0012ab <<K001{A24_THIRD}abc>>
oci: pass_phrase=<<quartz19elm>>
doctl auth init -t <<dop_v1_{HEX_THIRD}{HEX_THIRD}>>
linode-cli: LINODE_CLI_TOKEN=<<{HEX_THIRD}{HEX_THIRD}>>
ngrok: authtoken: <<2aB{B40_THIRD}>>
""".strip("\n").splitlines()

THIRD_LOOK_ALIKE = """
lightning.pytorch.utilities.rank_zero: You are using the plain ModelCheckpoint callback. Consider using LitModelCheckpoint
[2026-11-28T09:00:00Z] INFO auth: issued access token for bob2 (expires 2026-11-28T10:00:00Z)
level=info msg="token validated" user=bob2 ttl=3599s request_id=5e91c7d20a8b4f36
{"level":"info","msg":"authenticated","method":"oauth2","client_id":"trainer-ui-2"}
AssertionError: Expected password hash to start with $2b$
E         +  'token_type': 'bearer2',
>       assert resp.json()["detail"] == "Invalid token v2"
FAILED tests/test_tokens.py::test_rotation[key2-key3] - KeyError: 'k2'
SKIPPED [1] tests/auth/test_sso.py:42: needs HF_TOKEN2
tests/test_secrets.py ....s..x                                           [ 42%]
collected 482 items / 12 deselected / 470 selected
Coverage: trainshed/base/secrets.py 98% 12-14, 88
mypy: base/secret_names.py:42: error: Argument 1 to "mask" has incompatible type "str2"
ruff: S105 Possible hardcoded password assigned to: "token2"
bandit: Issue: [B106:hardcoded_password_funcarg] Possible hardcoded password: 'x'
pip-audit: PyJWT 2.4.0 GHSA-ffqj-6fqr-9h24 2.4.1
CVE-2024-35195: requests session verify bypass; fixed in 2.32.0
Bumps [cryptography](https://github.com/pyca/cryptography) from 42.0.5 to 43.0.1.
fix(auth): token refresh race (#4821), closes GH-912
Co-authored-by: bob2 <12345678+bob2@users.noreply.github.com>
Signed-off-by: Bob Example <bob@example.org>
Reviewed-by: key-person-2
Change-Id: I5e91c7d20a8b4f36e1d97c05ba28f4635e91c7d2
docker: Status: Downloaded newer image for vault:1.13.3
Step 7/12 : RUN --mount=type=secret,id=hf_token cat /run/secrets/hf_token | wc -c
Secret hf_token was not used in stage build-2
#5 resolve docker.io/library/redis:7.2@sha256:5e91c7d20a8b4f36e1d97c05ba28f4635e91c7d20a8b4f36e1d97c05ba28f463
image: ghcr.io/org/auth-proxy2:sha-5e91c7d
kubernetes.io/service-account-token secret for sa-trainer-2 created
secrets "registry-creds" already exists
envFrom: - secretRef: {name: train-secrets-v2}
volumeMounts: [{name: token-vol-2, mountPath: /var/run/secrets/tokens}]
Warning Failed Error: couldn't find key HF_TOKEN2 in Secret ml/hf-secret
Normal Pulled Successfully pulled image in 12.345s
helm: release "secrets-operator" upgraded to revision 12
terraform: aws_secretsmanager_secret.db: Refreshing state... [id=arn:aws:secretsmanager:us-east-1:123456789012:secret:db-x7Yz2Q]
random_password.db: Creation complete after 0s [id=none]
output db_password = <sensitive>
vault token lookup: display_name approle2, num_uses 0
ansible: ok: [web1] => (item=None)
TASK [auth : install python3-passlib] ok
PLAY RECAP web1 : ok=12 changed=3
systemd[1]: Started systemd-ask-password-console.path
ssh-agent: Identity added: /home/bob2/.ssh/id_ed25519 (bob2@laptop)
gpg: key 5E91C7D20A8B4F36: public key "Bob <bob@example.org>" imported
gpg: using RSA key 5E91C7D20A8B4F36E1D97C05BA28F4635E91C7D2
apt-key: OK, keyring /usr/share/keyrings/nvidia-2.gpg
W: http://repo/InRelease: Key is stored in legacy trusted.gpg keyring
openssl: verify return:1, depth=2 CN = ISRG Root X1
TLSv1.3 (OUT), TLS handshake, Client key exchange (16)
SSL connection using TLSv1.3 / TLS_AES_256_GCM_SHA384 / X25519
* Server auth using Basic with user 'bob2'
< WWW-Authenticate: Basic realm="Prometheus2"
< Set-Cookie2 header ignored
mongosh: Current Mongosh Log ID: 67482f1a3b5c7d9e1f2a4b6c
redis: WRONGPASS invalid username-password pair or user is disabled.
kafka: Failed authentication with /10.0.0.5 (SASL_PLAINTEXT) user=svc-2
psql: error: connection to server failed: fe_sendauth: no password supplied
mysql: Access denied for user 'train2'@'10.0.0.5' (using password: NO)
Epoch 3: val/key_acc1=0.981 val/token_f1=0.87 lr=3e-05
| epoch | token_acc1 | key_f1 |
Loading checkpoint shards: 100%|██████████| 4/4 token_embd.weight q8_0
llama_model_loader: - kv 12: tokenizer.ggml.bos_token_id u32 = 128000
gguf: tokenizer.ggml.pre str = llama-bpe2
vllm: INFO 11-28 09:00:00 Avg prompt throughput: 1234.5 tokens/s, KV cache usage: 12.3%
sglang: Decode batch. #running-req: 12, #token: 48210, token usage: 0.43
Passage 12: The Secret Garden, chapter 2; key themes: growth2life
answer: "The password to the vault was 'swordfish' in the film"
""".strip("\n").splitlines()


A24_FOURTH = "Lw2Rz9Kc5Tb8Xq1Vm6Hd3PnY"
B40_FOURTH = "sX4cV7bN1mQ8wE5rT2yU9iO3pA6dF0gJ7hK4lZ1x"
HEX_FOURTH = "b73f0c19e5a82d64f1076bc9d83e42a5"

FOURTH = f"""
2026-11-28T09:00:00.123Z stdout F DB_URI=mysql://app:<<cobalt28fern>>@db/x
[1,mpirank:3,algo-2]<stdout>: API_KEY=<<{A24_FOURTH}>>
algo-1 | password: <<cobalt28fern>>
worker-0: RuntimeError: token <<{A24_FOURTH}>> rejected by server
(raylet) env WANDB_API_KEY=<<{HEX_FOURTH}c0ffee11>> pid=3
(train_fn pid=812) Connecting with password <<cobalt28fern>>
Nov 28 09:00:00 node3 train[812]: secret=<<cobalt28fern>>
I1128 09:00:00 8 main.go:42] flag: --token="<<{A24_FOURTH}>>"
I1128 09:00:00 8 flags.go:64] FLAG: --db-password="<<cobalt28fern>>"
time="2026-11-28T09:00:00Z" level=info msg="using password cobalt" password=<<cobalt28fern>>
{{"message": "login", "extra": {{"pass": "<<cobalt28fern>>"}}}}
{{"env":{{"S3_SECRET":"<<{B40_FOURTH}>>","S3_BUCKET":"x"}}}}
job.yaml:12: hyperparameters.api_key: <<{A24_FOURTH}>> is not a number
unknown field 'passwrd: <<cobalt28fern>>' in job.yaml
environment:¶  HF_TOKEN: "<<hf_{B40_FOURTH}>>"¶hyperparameters:¶  lr: 0.1
--env DB_PASSWORD=<<cobalt28fern>> --env LR=1
--hp wandb_api_key=<<{HEX_FOURTH}c0ffee11>>
trainshed run job.yaml --env HF_TOKEN=<<hf_{B40_FOURTH}>>
source: https://oauth2:<<glpat-{A24_FOURTH}>>@gitlab.com/o/r.git
image: registry/x, login: bob, password: <<cobalt28fern>>
channels: {{train: "https://a.blob.core.windows.net/c?sig=<<{B40_FOURTH}%3D>>"}}
tracking: http://bob:<<cobalt28fern>>@mlflow:5000
notify: https://hooks.slack.com/services/<<T0AB/B0CD/{A24_FOURTH}>>
alert: https://x.webhook.office.com/webhookb2/<<{HEX_FOURTH[:8]}-1111-2222-3333-444455556666@x/IncomingWebhook/{HEX_FOURTH}/y>>
pagerduty routing_key=<<{HEX_FOURTH}>>
ntfy: Authorization: Bearer <<tk_{A24_FOURTH}>>
pushover: token=<<{A24_FOURTH}>>&user=u
telegram: bot_token=<<812345678:AAH{A24_FOURTH}abcdefghi>>
discord: DISCORD_TOKEN=<<{A24_FOURTH}.Gabcde.{B40_FOURTH[:27]}>>
twilio: auth_token = '<<{HEX_FOURTH}>>'
mailgun: api:<<key-{HEX_FOURTH}>>
smtp: {{'host': 'h', 'login': 'bob', 'password': '<<cobalt28fern>>'}}
import os; os.environ.update(API_KEY="<<{A24_FOURTH}>>", LR="1")
os.environ |= {{"NGC_API_KEY": "<<nvapi-{B40_FOURTH}>>"}}
load_dotenv: OPENAI_API_KEY -> <<sk-proj-{B40_FOURTH}>>
.env:3: MAIL_PASS='<<cobalt 28 fern>>'
dotenv: export SECRET="<<cobalt28fern>>"
$ echo $HF_TOKEN¶<<hf_{B40_FOURTH}>>
$ cat ~/.netrc¶machine api.wandb.ai¶  login user¶  password <<{HEX_FOURTH}c0ffee11>>
$ cat ~/.aws/credentials¶[default]¶aws_secret_access_key = <<{B40_FOURTH}>>
$ cat ~/.kaggle/kaggle.json¶{{"username":"bob","key":"<<{HEX_FOURTH}>>"}}
$ cat ~/.cache/huggingface/token¶<<hf_{B40_FOURTH}>>
$ cat id_rsa¶-----BEGIN RSA PRIVATE KEY-----¶<<MIIEowIBAAKCAQEAvRS7mQ2kq3n0F1Z7GmA9oQ>>
$ git remote -v¶origin https://bob:<<ghp_{B40_FOURTH[:36]}>>@github.com/o/r (fetch)
$ env | grep PASS¶PGPASS=<<cobalt28fern>>
$ ssh bob@h¶bob@h's password: <<cobalt28fern>>
$ su -¶Password: <<cobalt28fern>>
$ openssl rand -hex 16 > key; cat key¶<<{HEX_FOURTH}>>
$ python -c "import secrets; print(secrets.token_urlsafe())"¶<<{B40_FOURTH}abc>>
$ pwgen -s 16 1 # new password¶<<Lw2Rz9Kc5Tb8Xq1V>>
$ aws ecr get-login-password¶<<eyJwYXlsb2FkIjoi{B40_FOURTH}{B40_FOURTH}>>
$ gcloud auth print-access-token¶<<ya29.{B40_FOURTH}>>
$ az account get-access-token --query accessToken¶"<<eyJ0eXAiOiJKV1Qi.eyJhdWQiOiJo.{A24_FOURTH}>>"
$ kubectl create token sa¶<<eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOlsiaCJdfQ.{A24_FOURTH}>>
$ docker run -e KEY=1 -e SECRET_KEY=<<cobalt28fern>> x
$ mysql -ubob -p<<cobalt28fern>> db
$ curl -s -u bob:<<cobalt28fern>> h
$ curl -H "apikey: <<{A24_FOURTH}>>" h
$ wget --header "Authorization: Basic <<Ym9iOmNvYmFsdDI4ZmVybg==>>" h
$ http h Authorization:"Token <<{HEX_FOURTH}>>"
$ PGPASSWORD=<<cobalt28fern>> pg_dump x
$ echo "<<cobalt28fern>>" | sudo -S reboot
$ sshpass -p<<cobalt28fern>> ssh h
$ zip -P <<cobalt28fern>> a.zip a
$ openssl enc -aes-256-cbc -pass pass:<<cobalt28fern>> -in a
$ mc alias set m http://h bob <<cobalt28fern>>
$ rclone obscure <<cobalt28fern>>
$ htpasswd -nb bob <<cobalt28fern>>
$ vault kv put kv/x password=<<cobalt28fern>>
$ gh auth login --with-token <<< <<ghp_{B40_FOURTH[:36]}>>
$ export TOKEN=$(echo <<{A24_FOURTH}>>)
Geheimnis: <<Kobalt28Farn>>
mot de passe=<<cobalt28fougere>>
contraseña: "<<cobalto28>>"
Пароль пользователя: <<kobalt28Fern>>
数据库密码：<<cobalt28Fern>>
パスワードは<<cobalt28Fern>>です
senha do banco: <<cobalto28Fern>>
""".strip("\n").splitlines()

FOURTH_LOOK_ALIKE = """
2026-11-28T09:00:00.123Z stdout F Loading tokenizer2 from /opt/ml/input/data/model
[1,mpirank:3,algo-2]<stdout>: step=12 loss=2.31 tokens=4096
algo-1 | INFO sagemaker-training-toolkit: Reporting training SUCCESS
(raylet) node id 5b1f0c19e5a82d64f1076bc9d83e42a5b73f0c19e5a82d64f1076bc9
(train_fn pid=812) Using device cuda:3, rank3 of 8
Nov 28 09:00:00 node3 sshd[812]: Accepted password for bob2 from 10.0.0.5 port 51234
Nov 28 09:00:00 node3 sudo: bob2 : TTY=pts/0 ; PWD=/home/bob2 ; USER=root ; COMMAND=/usr/bin/id
I1128 09:00:00 8 flags.go:64] FLAG: --token-auth-file=""
I1128 09:00:00 8 flags.go:64] FLAG: --service-account-key-file="[/etc/k8s/sa2.key]"
job.yaml:12: hyperparameters.api_key: expected text, found a mapping
job.yaml: environment.HF_TOKEN: give it by reference: {env: HF_TOKEN}
trainshed: password looks like a secret; give it by reference (docs/running.md)
trainshed run: run train-key-2024-11-28-090000-a1b2 started
runs/token-ablation-7f3c9b1e/algo-1.log
Completed in 12 min 3 s, best val/key_acc1 0.981 at step 1200
compare: run-a1b2c3 and run-d4e5f6 differ in token_budget2 (4096, 8192)
roster: host 2 of 4 proved the job's key in 12 ms
Secret train-roster-2 holds the roster's token
checkpoint step-1200 verified, sha256 b73f0c19e5a82d64f1076bc9d83e42a5b73f0c19e5a82d64f1076bc9d83e42a5
packing: 123 files, 4.5 GB, digest xxh3:b73f0c19e5a82d64
$ ls -l ~/.ssh¶-rw------- 1 bob2 bob2 411 Nov 28 09:00 id_ed25519
$ git log --oneline¶b73f0c1 secrets: know five more forms¶9e5a82d tokens: count2
$ git stash list¶stash@{0}: WIP on fix-auth2: 9e5a82d wip
$ pip list¶keyring 25.5.0¶tokenizers 0.20.3¶PyJWT 2.9.0
$ nvidia-smi -L¶GPU 0: NVIDIA H200 (UUID: GPU-b73f0c19-e5a8-2d64-f107-6bc9d83e42a5)
$ kubectl get secrets¶NAME TYPE DATA AGE¶hf-token Opaque 1 12d¶regcred kubernetes.io/dockerconfigjson 1 3d
$ docker images¶vault 1.13 9e5a82d64f10 3 weeks ago 228MB
$ squeue¶48213 gpu token-tr bob2 R 1:02:03 4 node[01-04]
$ cat requirements.txt¶tokenizers==0.20.3¶python-keycloak==4.6.2¶passlib[bcrypt]==1.7.4
$ head data.csv¶user,password_len,age¶bob2,12,31¶eve3,9,44
$ wc -l passwords.txt¶14344391 passwords.txt
$ md5sum keys.bin¶b73f0c19e5a82d64f1076bc9d83e42a5  keys.bin
$ sha256sum secret_data.tar¶b73f0c19e5a82d64f1076bc9d83e42a5b73f0c19e5a82d64f1076bc9d83e42a5  secret_data.tar
$ du -sh .cache/huggingface/token¶4.0K .cache/huggingface/token
$ python -m pytest tests/test_secret_forms.py -k "token2 or key3"
$ grep -rn "password" src | wc -l¶42
$ ssh-keygen -lf id_ed25519.pub¶256 SHA256:Lw2Rz9Kc5Tb8Xq1Vm6Hd3PnYsX4cV7bN1mQ8wE5rT2y bob2@laptop (ED25519)
$ man passwd | head -2¶PASSWD(1) User Commands PASSWD(1)
$ id¶uid=1001(bob2) gid=1001(bob2) groups=1001(bob2),27(sudo)
$ uname -a¶Linux node3 5.15.0-1066-aws #72-Ubuntu SMP x86_64 GNU/Linux
Das Passwort wurde am 28.11.2026 geändert (Benutzer bob2)
Le mot de passe doit contenir 8 caractères et 1 chiffre
La contraseña caduca en 30 días
Пароль неверный, попытка 2 из 3
密码长度至少8位
パスワードを入力してください（8文字以上）
A senha deve ter 8 caracteres, sendo 2 digitos
clave foránea: usuario_id2 -> usuarios.id
Passkey retrieval at 32k: 98.1%
token_f1: 0.912, token_acc1: 0.95
["<s>", "token2", "</s>"]
special_tokens_map.json: {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
chat template: {{ bos_token }}{% for m in messages2 %}{{ m['content'] }}
<|reserved_special_token_12|>
LoRA keys: base_model.model.layers.0.self_attn.q_proj.lora_B.default2
AutoAWQ: qkv_proj w4a16 g128, key_states dtype bf16
flash-attn: key cache k8v4 enabled
triton kernel key ('_attn_fwd2', 64, 128, 'fp16') cached
autotuning key: (4096, 4096, 'bf16', 'sm90a')
inductor: cache key fx2a7b9c not found
DataLoader key 'input_ids2' missing in batch; keys: ['pixel_values2', 'labels']
""".strip("\n").splitlines()


A24_FIFTH = "Rk3Wz8Qm5Yt2Xp7Vc9Jh4NbL"
B40_FIFTH = "gT6hY2nU8jM4kI1lO5pQ9zA3xS7wC0eD6vF2rB8t"
HEX_FIFTH = "e4a91c70b8d2536fa0471ec95db8f263"

FIFTH = f"""
Loaded .env: STRIPE_SECRET=<<sk_live_{A24_FIFTH}>>
dbt: profiles.yml: pass: <<hunter22>>
dbt: password: "<<letmein99>>"
airflow: Login with username: admin  password: <<Summer2024>>
airflow connections add x --conn-password <<hunter22>>
AIRFLOW_CONN_DB=postgres://bob:<<letmein99>>@db/x
prefect cloud login -k <<pnu_{B40_FIFTH[:36]}>>
dagster: DAGSTER_CLOUD_API_TOKEN=<<user:{HEX_FIFTH}>>
feast: redis connection_string: "h:6379,password=<<hunter22>>"
great_expectations: credentials: password: <<letmein99>>
metaflow: METAFLOW_SERVICE_AUTH_KEY=<<{A24_FIFTH}>>
zenml connect --api-key <<ZENKEY_{B40_FIFTH}>>
dvc: remote password prompt: <<Summer2024>>
lakectl: secret_access_key: <<{B40_FIFTH}>>
pachctl auth use-auth-token <<{HEX_FIFTH}>>
kubeflow: pipelines session cookie: authservice_session=<<{B40_FIFTH}>>
seldon: SELDON_TOKEN: "<<{A24_FIFTH}>>"
triton: --http-restricted-api=model:admin-key=<<{A24_FIFTH}>>
vllm serve m --api-key <<letmein99>>
tgi: HUGGING_FACE_HUB_TOKEN=<<hf_{B40_FIFTH}>>
ollama: OLLAMA_API_KEY=<<{HEX_FIFTH}.{A24_FIFTH}>>
litellm: master_key: <<sk-1234abcd>>
litellm_params: {{model: x, api_key: "<<{HEX_FIFTH}>>"}}
langsmith: LANGCHAIN_API_KEY="<<lsv2_pt_{HEX_FIFTH}_a1b2c3d4e5>>"
langfuse: secret_key=<<sk-lf-{HEX_FIFTH[:8]}-1111-2222-3333-444455556666>>
pinecone.init(api_key="<<{HEX_FIFTH[:8]}-1111-2222-3333-444455556666>>")
weaviate: auth_client_secret=AuthApiKey("<<{A24_FIFTH}>>")
qdrant: QdrantClient(url=u, api_key='<<{B40_FIFTH}>>')
milvus: token="root:<<Summer2024>>"
elasticsearch: basic_auth=('elastic', '<<letmein99>>')
opensearch: http_auth=("bob", "<<hunter22>>")
es: ApiKey <<Vm5hSEdZVUJRTTJhY2ppT1RiV0M6dWkybHAyYXhUTm1zeWFrdzl0dk5udw==>>
mlflow: OSError: [Errno 2] http://bob:<<Summer2024>>@h/api
comet: COMET INFO: key <<{A24_FIFTH}a>> saved
clearml-init: access_key: "K" secret_key: "<<{B40_FIFTH}>>"
determined: det user login bob --password <<letmein99>>
polyaxon login --token=<<{HEX_FIFTH}>>
grafana: api_key=<<glsa_{B40_FIFTH}_a1b2c3d4>>
datadog: DD_APP_KEY=<<{HEX_FIFTH}a1b2c3d4>>
newrelic: license_key = <<{HEX_FIFTH}NRAL>>
sentry: SENTRY_AUTH_TOKEN=<<sntrys_{B40_FIFTH}>>
honeycomb: x-honeycomb-team: <<{A24_FIFTH}>>
otel: OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20<<{A24_FIFTH}>>
prometheus: basic_auth: {{username: bob, password: <<letmein99>>}}
loki: --client.tenant-id=x --client.password=<<hunter22>>
fluentd: aws_sec_key <<{B40_FIFTH}>>
vector: auth.token = "<<{A24_FIFTH}>>"
rsync: RSYNC_PASSWORD=<<hunter22>> rsync a b
lftp -u bob,<<letmein99>> sftp://h
sftp: batch: password <<Summer2024>>
s5cmd: AWS_SECRET_ACCESS_KEY <<{B40_FIFTH}>>
globus: client_secret=<<{B40_FIFTH}>>
irods: "irods_password": "<<letmein99>>"
hdfs: hadoop.security.credential=<<hunter22>>
trino --password <<letmein99>>
hive: javax.jdo.option.ConnectionPassword=<<hunter22>>
beeline -u jdbc:hive2://h -n bob -p <<letmein99>>
snowsql -o password=<<hunter22>>
bigquery: "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQ<<IBADANBgkqhkiG9w0BAQEF>>\\n-----END PRIVATE KEY-----\\n"
redshift: IAM_ROLE or CREDENTIALS 'aws_access_key_id=A;aws_secret_access_key=<<{B40_FIFTH}>>'
COPY t FROM 's3://x' SECRET_ACCESS_KEY '<<{B40_FIFTH}>>'
CREATE SECRET s (TYPE s3, KEY_ID 'A', SECRET '<<{B40_FIFTH}>>');
ATTACH 'host=h user=bob password=<<letmein99>>' AS pg (TYPE postgres);
""".strip("\n").splitlines()

FIFTH_LOOK_ALIKE = """
dbt: 12:03:04 Completed with 0 errors, PASS=12 WARN=0 ERROR=0 SKIP=2 TOTAL=14
dbt: 1 of 14 PASS not_null_users_token_id2 [PASS in 0.12s]
airflow: Connection with conn_id `db_secret2` not found
prefect: Flow run 'amber-fox-482' - Created task run 'get_token-0' for task 'get_token'
dagster: run 3f1a9c0b-7d5e-42f6-a8b1-c2d3e4f5a6b7 step auth_check2 succeeded
metaflow: [2026-11-28 09:00:00] [812/train/3 (pid 4821)] Task is starting
zenml: Using the stack default-2 with secrets manager aws_sm_2
kubeflow: experiment token-ablation-2 created, run id e4a91c70-b8d2-536f-a047-1ec95db8f263
triton: model key_encoder_v2 loaded, 1 instances
vllm: prompt_token_ids=[128000, 9906], lora_request=None, key2=None
tgi: Serving revision e4a91c70b8d2536fa0471ec95db8f263e4a91c70 of model org/x
ollama: pulling 8eeb52dfb3bb... 100% 4.7 GB
langsmith: tracing to project token-tests-2
pinecone: index key-passages-v2 dimension 768
milvus: collection secrets_of_history_2 loaded
elasticsearch: green open passages_v2 uJ3kT9wQ 1 0 120394
mlflow: Logged metric token_loss2=0.312 at step 1200
comet: COMET INFO: Experiment is live on comet.com https://www.comet.com/team/proj/3f1a9c0b7d5e42f6
clearml: Task: created new task id=e4a91c70b8d2536fa0471ec95db8f263
determined: trial 12 passed validation, searcher metric 0.312
grafana: dashboard uid=aB3dE9kQz updated by key-rotation-bot2
datadog: Trace Agent, API Key ending with *****1c70
sentry: event id e4a91c70b8d2536fa0471ec95db8f263
otel: traceparent 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
prometheus: scrape_pool=auth-proxy2 target=10.0.0.5:9090
fluentd: tag train.key.2 matched
rsync: sending incremental file list keys/part-0012.bin
globus: Task ID: 3f1a9c0b-7d5e-11ef-a8b1-c2d3e4f5a6b7
hdfs: Setting token renewer to yarn2
hive: Table default.tokens2 stats: [numFiles=12]
trino: Query 20261128_090000_00012_k3x9z, FINISHED, 4 nodes
snowflake: SQL compilation error: invalid identifier 'PASSWORD2'
bigquery: Job e4a91c70-b8d2 finished; 12 rows in dataset.secret_counts2
COPY tokens2 FROM 's3://bucket/tokens/part-0012.csv' CSV HEADER
PRIMARY KEY (user_id2), FOREIGN KEY (key_id2) REFERENCES keys(id2)
ERROR: duplicate key value violates unique constraint "tokens_pkey2"
DETAIL: Key (token_id)=(12345) already exists.
WARNING: password "policy" setting is deprecated
hint: password must contain a digit, e.g. use a generator
keyboard shortcut: ctrl+k2
author: Key, A. and Token, B. (2024)
Figure 12: key/query projections, token2vec baseline
Table 3: passkey accuracy at 32k: 98.1
Theorem 2 (secret sharing): let k1 and k2 be keys
Sequence tokens: "sk" "-" "learn2"
BPE merge 12: 'pass' + 'word2' -> 'password2'
vocab[31234] = 'Ġpassword1'
attention key_cache2 layout NHD
scheduler: JobKey(name='train2', queue='gpu')
PartitionKey=2026-11-28, SortKey=run#12
consumer group token-consumers2 rebalanced
etcd: key /registry/pods/ml/train-2 revision 4821
raft: peer key-2 became leader at term 12
Cache key: v2-deps-{{ checksum "requirements.txt" }}
Found a cache from build 4821 at v2-deps-3kT9wQuJ8eEb52dFb3bB=
hashed_password: bool = True
api_key_header = APIKeyHeader(name="X-API-Key2", auto_error=False)
raise HTTPException(status_code=401, detail="Invalid API key2")
client = Client(api_key=settings.api_key2, timeout=30)
token = tokenizer.decode([12, 13], skip_special_tokens=True)
""".strip("\n").splitlines()


def written(texts: list[str]) -> list[str]:
    return [text.replace("¶", "\n") for text in texts]


@pytest.mark.parametrize(
    "secrets", [PROBES, FIRST, SECOND, THIRD, FOURTH, FIFTH], ids=["probes", "first", "second", "third", "fourth", "fifth"]
)
def test_secrets_in_forms_that_were_not_written_down_are_masked(secrets: list[str]) -> None:
    assert len(secrets) >= 60
    found = missed(written(secrets))
    assert len(found) <= MOST_MISSED, "\n".join(found)


@pytest.mark.parametrize(
    "lines",
    [FIRST_LOOK_ALIKE, SECOND_LOOK_ALIKE, THIRD_LOOK_ALIKE, FOURTH_LOOK_ALIKE, FIFTH_LOOK_ALIKE],
    ids=["first", "second", "third", "fourth", "fifth"],
)
def test_lines_that_look_like_secrets_stay(lines: list[str]) -> None:
    assert len(lines) >= 60
    found = blanked(written(lines))
    assert len(found) <= MOST_BLANKED, "\n".join(found)


def test_random_letters_are_told_from_names() -> None:
    names = [
        "Qwen2ForSequenceClassification3",
        "DistributedDataParallel_find_unused_2",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n",
    ]
    assert [name for name in names if is_random(name)] == []
    assert [word for word in (R24_PROBES, R40_FIRST, A24_SECOND, B40_THIRD) if not is_random(word)] == []
