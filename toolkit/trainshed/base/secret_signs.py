"""A quick look for secrets in a text: signs without which `secret_shapes`, which takes long to load, would find none.

A line of a log without any sign costs less than a microsecond, so all is written out.
"""

from __future__ import annotations

MASK = "******"
_LONG = 18  # letters, digits, _ and - of which a key by its form has a run
_WORDS = bytes(120 if (chr(one).isalnum() and one < 128) or chr(one) in "_-" else 32 for one in range(256))
_RUN = b"x" * _LONG
_BLOCK = 2048  # bytes: smaller blocks have few lines that are alike
_DIGITS = b"0123456789"
# One of these is in every key of `secret_shapes._ISSUED`.
_ISSUED = (
    "AKIA", "ASIA", "LTAI", "AKID", "hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_",
    "glpat-", "gldt-", "glrt-", "glcbt-", "glptt-", "glft-", "glsoat-", "glimt-", "glagent-", "glsa_", "glc_",
    "sk-", "pk-lf-", "k_live_", "k_test_", "whsec_", "pypi-", "npm_", "dckr_", "xox", "xapp-", "AIza", "ya29.", "1//0",
    "GOCSPX-", "SG.", "_v1_", "shpat_", "shpss_", "shpca_", "shppa_", "hvs.", "hvb.", "hvr.", "dp.", "dt0",
    "nvapi-", "pplx-", "xai-", "tvly-", "tskey-", "sq0", "gsk_", "r8_", "rpa_", "fw_", "lsv2_", "figd_", "ntn_", "sbp_",
    "lin_api_", "pscale_", "rubygems_", "sntry", "dapi", "key-", "pul-", "PMAK-", "NRAK-", "ATATT3", "ATCTT3", "ATBB",
    "AGE-SECRET-KEY-1", "CLOJARS_", "cio", "eyJ", ":AA",
)  # fmt: skip
# One is where an address, or a command with one, has a secret.
_IN_ADDRESSES = ("@", "=", "/t/", " -", "'-", '"-')
# Likewise, in lower case, of what is a secret by what stands before it, and has a run.
_BEFORE_RUNS = (
    "code=", "sign=", "ature=", "sessionid=", "telegram", "curl", "http", "xh ", "wget", "-p", "-stdin", "securestring",
    "mysql", "docker",
)  # fmt: skip


def has_signs(text: str) -> bool:
    """Whether a text could hold a secret."""
    low = text.lower()
    return (
        "pass" in low or "token" in low or "key" in low or "secr" in low or "auth" in low
        or "pw" in low or "cred" in low or "ook" in low or "conn" in low or "jwt" in low or "login" in low
        or "_pat" in low or "_sas" in low or "dsn" in low or "bear" in low or "basic " in low
        or "sid=" in low or "sig=" in low or "-u" in low or ":543" in low or "jdbc:" in low or "ified by" in low
        or ("://" in low and any(sign in low for sign in _IN_ADDRESSES)) or _may_hold_keys(text, low)
    )  # fmt: skip


def block_has_signs(data: bytes) -> bool:
    """The same for a block of lines, of which many differ in their digits alone: each of those is looked at once."""
    text = data.decode("latin-1")  # any bytes, and the same ones when encoded again
    if len(data) < _BLOCK:
        return has_signs(text)
    lines = {*data.translate(None, _DIGITS).splitlines()}
    return (
        ":543" in text  # the only sign with digits, besides those of keys
        or has_signs(b"\n".join(lines).decode("latin-1"))
        or _may_hold_keys(text, "")
    )


def _may_hold_keys(text: str, low: str) -> bool:
    """low: the text in lower case, where that is known."""
    return has_run(text) and (has_issued(text) or any(sign in (low or text.lower()) for sign in _BEFORE_RUNS))


def has_run(text: str) -> bool:
    """Whether a text has a word as long as a key."""
    return _RUN in text.encode("latin-1", "replace").translate(_WORDS)


def has_issued(text: str) -> bool:
    """Whether a text has the beginning of a key that a service issues."""
    return any(sign in text for sign in _ISSUED)
