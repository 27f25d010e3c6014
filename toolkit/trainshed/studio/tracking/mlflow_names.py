"""Names and values as MLflow takes them.

Source: mlflow.utils.validation of MLflow 3: names of metrics and parameters have at most 250 characters of letters, digits,
`_ - . : /` and blanks, and are paths that lead nowhere else; values of parameters have at most 6,000 characters, of tags
8,000; a batch has at most 1,000 metrics and 100 parameters or tags.
"""

from __future__ import annotations

import re
from hashlib import sha256

LONGEST_NAME, LONGEST_PARAMETER, LONGEST_TAG = 250, 6000, 8000
METRICS_A_BATCH, TEXTS_A_BATCH = 1000, 100
_REFUSED = re.compile(r"[^A-Za-z0-9_\-. :/]")


def mlflow_name(name: str) -> str:
    """The name itself where MLflow takes it; else one that it takes, different for different names."""
    clean = "/".join(part for part in _REFUSED.sub("_", name).strip(" /").split("/") if part not in ("", ".", ".."))
    if clean and clean == name and len(clean) <= LONGEST_NAME:
        return name
    mark = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{clean[: LONGEST_NAME - 7]}_{mark}"


def cut(text: str, longest: int) -> str:
    """A value of at most so many characters; `...` marks a cut."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
