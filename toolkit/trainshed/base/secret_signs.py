"""A quick look for secrets in a text: signs without which `secret_shapes`, which takes long to load, would find none.

A line of a log without any sign costs less than a microsecond, so all is written out.
"""

from __future__ import annotations

MASK = "******"
_LONG = 18  # letters, digits, _ and - of which a key by its form has a run
_WORDS = bytes(120 if (chr(one).isalnum() and one < 128) or chr(one) in "_-" else 32 for one in range(256))
_RUN = b"x" * _LONG
_RANDOM = bytes(one if (chr(one).isalnum() and one < 128) or chr(one) in "_-+/=" else 32 for one in range(256))
# One of these is part of every name of a secret that has ASCII letters alone, or its end.
SUSPECTS = (
    "secret", "pass", "token", "credential", "key", "auth", "bearer", "jwt", "pwd", "webhook", "cookie", "connection",
    "conn_str", "parol", "senha", "contrasen", "clave", "kennwort", "wachtwoord", "p4ss", "pa$$", "w0rd", "pasw", "pswd",
    "psk", "mnemonic",
)  # fmt: skip
# The same of other scripts and of letters with marks.
FOREIGN = (
    "парол", "密码", "密碼", "口令", "パスワード", "비밀번호", "암호", "κωδικ", "סיסמ", "รหัสผ่าน",
    "contraseñ", "hasło", "şifre", "lösenord",
)  # fmt: skip
_SUSPECT_ENDS = ("pat", "pw", "sas", "creds", "dsn")
_BLOCK = 2048  # bytes: smaller blocks have few lines that are alike
_DIGITS = b"0123456789"
# Words with hyphens and a version are no key: sk-learn-something-v2.
_DIGIT = r"(?=[A-Za-z_-]{0,99}\d)"
_DENSE = _DIGIT + r"(?=[A-Za-z0-9_-]{0,200}?(?:[A-Za-z0-9]{14}|[0-9a-f]{8}-[0-9a-f]{4}-))"
# Keys that services begin in a way of their own: (beginnings, what follows, what stands before them). Such a key is followed
# and preceded by nothing of its own kind. A text without any of the beginnings has none.
ISSUED = (
    ("AKIA ASIA", r"[A-Z0-9]{16}"), ("LTAI", r"[A-Za-z0-9]{16,20}"), ("AKID", r"[A-Za-z0-9]{32}"),
    ("hf_ api_org_", r"[A-Za-z0-9]{20,}"), ("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"[A-Za-z0-9_]{20,}"),
    ("glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent- glsa_ glc_", r"[A-Za-z0-9_-]{20,}"),
    ("sk-", r"(?:proj|ant|or|svcacct|admin)-" + _DIGIT + r"[A-Za-z0-9_-]{20,}"),
    ("sk- pk-lf-", _DENSE + r"[A-Za-z0-9_-]{20,}"), ("sk_live_ rk_live_ sk_test_ rk_test_ whsec_", r"[A-Za-z0-9]{16,}"),
    ("pypi-", _DIGIT + r"[A-Za-z0-9_-]{40,}"), ("npm_", r"[A-Za-z0-9]{30,}"), ("dckr_", r"[po]at_[A-Za-z0-9_-]{20,}"),
    ("xox", r"[abceoprs]-[A-Za-z0-9-]{10,}"), ("xapp-", r"[A-Za-z0-9-]{10,}"), ("AIza", r"[A-Za-z0-9_-]{30,}"),
    ("ya29. 1//0 GOCSPX-", r"[A-Za-z0-9_-]{20,}"), ("SG.", r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("doo_v1_ dop_v1_ dor_v1_", r"[a-f0-9]{40,}"), ("shpat_ shpss_ shpca_ shppa_", r"[a-fA-F0-9]{32}"),
    ("hvs. hvb. hvr.", r"[A-Za-z0-9_.-]{20,}"), ("dp.", r"[a-z]{2}\.[A-Za-z0-9_.-]{20,}"),
    ("dt0", r"[a-z]\d\d\.[A-Za-z0-9_.-]{20,}"), ("nvapi- pplx- xai- tvly- tskey-", _DENSE + r"[A-Za-z0-9_-]{20,}"),
    ("sq0", r"[a-z]{3}-" + _DENSE + r"[A-Za-z0-9_-]{20,}"), ("r8_", r"[A-Za-z0-9]{37}"),
    ("gsk_ rpa_ tgp_v1_ fw_ wandb_v1_ figd_ ntn_ sbp_ lin_api_ rubygems_ sntrys_ sntryu_", _DIGIT + r"[A-Za-z0-9_-]{20,}"),
    ("lsv2_", r"[ps][tk]_" + _DIGIT + r"[A-Za-z0-9_-]{20,}"), ("pscale_", r"\w{2,8}_" + _DIGIT + r"[A-Za-z0-9_-]{20,}"),
    ("dapi", r"[a-f0-9]{32}(?:-\d)?"), ("key-", r"[a-f0-9]{32}"), ("pul-", r"[a-f0-9]{40}"),
    ("PMAK- NRAK- ATATT3 ATCTT3 ATBB AGE-SECRET-KEY-1 CLOJARS_", r"[A-Za-z0-9_=-]{20,}"), ("cio", r"[A-Za-z0-9]{32}"),
    ("xkeysib- xsmtpsib- sgp_ phx_ secret_ pnu_ CFPAT- duffel_live_ duffel_test_ shippo_live_ shippo_test_ rdme_ ops_"
     " FLWSECK- FLWSECK_TEST- EZAK EZTK amzn1.oa2-cs.v1. v1.0- APA91b", _DIGIT + r"[A-Za-z0-9_-]{32,}"),
    ("pat-na pat-eu", r"\d-" + _DIGIT + r"[A-Za-z0-9_-]{32,}"), ("sl.B sl.u", r"\.?" + _DIGIT + r"[A-Za-z0-9_-]{32,}"),
    ("b3BlbnNzaC1rZXktdjE", r"[A-Za-z0-9+/]{20,}"), ("oy2", r"[a-z0-9]{43}"), ("SK", r"[0-9a-f]{32}"),
    ("pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    ("eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]+){1,3}", r"(?<!-)"),
    (":AA", r"[A-Za-z0-9_-]{30,}", r"\d{8,10}"),
)  # fmt: skip
_BEGINNINGS = tuple(sign for beginnings, *_ in ISSUED for sign in beginnings.split())
# One is where an address, or a command with one, has a secret.
_IN_ADDRESSES = ("@", "=", "/t/", "alias ", " -", "'-", '"-')
# Likewise, in lower case, of what is a secret by what stands before it, and has a run.
_BEFORE_RUNS = (
    "code=", "sign=", "ature=", "sessionid=", "telegram", "curl", "http", "xh ", "wget", "-p", "-stdin", "securestring",
    "mysql", "docker",
)  # fmt: skip


def is_suspect(name: str) -> bool:
    """Whether a name could be that of a secret; `secret_words` judges it then."""
    lower = name.lower()
    return not lower.isascii() or lower.endswith(_SUSPECT_ENDS) or any(word in lower for word in SUSPECTS)


def has_signs(text: str) -> bool:
    """Whether a text could hold a secret."""
    low = text.lower()
    return (
        "pass" in low or "token" in low or "key" in low or "secr" in low or "auth" in low or "@" in low
        or "pw" in low or "cred" in low or "ook" in low or "conn" in low or "jwt" in low or "login" in low
        or "_pat" in low or "_sas" in low or "dsn" in low or "bear" in low or "basic " in low or "psk" in low
        or "sid=" in low or "sig=" in low or "-u" in low or ":543" in low or "jdbc:" in low or "ified by" in low
        or " -p" in low or "sudo " in low or "redis-c" in low
        or "senha" in low or "kennw" in low or "wachtw" in low or "parol" in low
        or ("://" in low and any(sign in low for sign in _IN_ADDRESSES)) or _may_hold_keys(text, low)
        or (not low.isascii() and any(word in low for word in FOREIGN))
    )  # fmt: skip


def block_has_signs(data: bytes) -> bool:
    """The same for a block of lines, of which many differ in their digits alone: each of those is looked at once."""
    if len(data) < _BLOCK:
        return has_signs(data.decode("utf-8", "surrogateescape"))
    lines = {*data.translate(None, _DIGITS).splitlines()}
    return (
        b":543" in data  # the only sign with digits, besides those of keys
        or has_signs(b"\n".join(lines).decode("utf-8", "surrogateescape"))
        or _may_hold_keys(data.decode("latin-1"), "")
    )


def _may_hold_keys(text: str, low: str) -> bool:
    """low: the text in lower case, where that is known."""
    return has_run(text) and (
        has_issued(text)
        or any(sign in (low or text.lower()) for sign in _BEFORE_RUNS)
        or any(map(_may_be_random, text.encode("latin-1", "replace").translate(_RANDOM).split()))
    )


def _may_be_random(word: bytes) -> bool:
    """Whether a word has what random ones have (`secret_looks.is_random`), or hides a text as digits."""
    if len(word) < _LONG:
        return False
    if word.lower() != word != word.upper() and not word.isalpha():
        return True
    try:
        return bytes.fromhex(word.decode()).isascii()
    except ValueError:
        return False


def has_run(text: str) -> bool:
    """Whether a text has a word as long as a key."""
    return _RUN in text.encode("latin-1", "replace").translate(_WORDS)


def has_issued(text: str) -> bool:
    """Whether a text has the beginning of a key that a service issues."""
    return any(sign in text for sign in _BEGINNINGS)
