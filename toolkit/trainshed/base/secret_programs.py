"""Programs that are given a secret by an option or a place of their own, which no word names: what stands before it."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_USER = r"[ =]?['\"]?[^\s:'\"]{1,200}:"
_ANY = r"[^\s'\"]{4,}"
# Programs, what stands before the secret (after other words), and the secret.
_OPTIONS = (
    # A user of `docker run`, `srun` and others is followed by a group.
    ("curl", rf"(?:-[a-zA-Z]{{0,8}}u|--(?:proxy-)?user){_USER}", r"[^\s'\"]+"),
    ("curl", r"(?:-b|--cookie)[ =]?['\"]?[\w.-]{1,64}=", r"[^\s'\"]{6,}"),
    ("https?|xh|wget", rf"(?:-a|--auth|--(?:proxy-)?user){_USER}", r"[^\s'\"]+"),
    ("skopeo|crane|oras|regctl", rf"--(?:src-|dest-)?creds{_USER}", r"[^\s'\"]+"),
    ("docker login|podman login|helm registry login|sshpass", "-p[ =]?['\"]?", r"[^\s'\"]+"),
    ("mysql\\w{0,10}|mariadb\\w{0,10}|7z|7za|unrar|rar", "-p['\"]?", r"[^\s'\"]+"),
    ("mongo\\w{0,10}|twine|login|influx|cqlsh|svn|sqlcmd|oc|beeline|bcp|isql|ipmitool|rdesktop|zip|unzip|mosquitto_\\w+|snowsql",
     "-[pP][ =]?['\"]?", rf"(?!\d+(?::\d+)?(?:\s|\Z)){_ANY}"),
    ("ldap\\w{3,10}", "-w[ ]?['\"]?", _ANY),
    ("smb\\w{2,10}|rpcclient|net", r"-U[ =]?['\"]?[^\s%'\"]{1,80}%", r"[^\s'\"]+"),
    ("openssl", r"(?:-k[ ]|-K[ ]|-pass(?:in|out)?\spass:)['\"]?", _ANY),
    ("htpasswd", r"-\w{0,5}b\w{0,5}[ ]\S{1,200}[ ]\S{1,80}[ ]['\"]?", _ANY),
    ("htpasswd", r"-\w{0,4}n\w{0,4}[ ]\S{1,80}[ ]['\"]?", _ANY),
    ("lftp|ncftp\\w{0,4}", r"-u[ ]?[^\s,]{1,80},", _ANY),
    ("snmp\\w+", "-[AX][ ]?['\"]?", _ANY),
    ("ssh-keygen", "-[NP][ ]?['\"]", r"[^'\"\n]{4,}"),
)  # fmt: skip
_PLACES = (
    ("net use", r"/user:\S{1,80}[ ]", _ANY),
    ("net user", r"[\w.-]{1,40}[ ]", r"(?![/*])" + _ANY),
    ("xfreerdp|mstsc", "/p:['\"]?", _ANY),
    ("rabbitmqctl", r"(?:add_user|change_password|authenticate_user)[ ]\S{1,80}[ ]['\"]?", _ANY),
    ("mc", r"(?:alias[ ]set|config[ ]host[ ]add)[ ]\S{1,80}[ ]\S{1,200}[ ]\S{1,200}[ ]['\"]?", _ANY),
    ("sqlplus|expdp|impdp|sqlldr|rman", r"(?:target[ ])?['\"]?[\w$]{1,40}/", r"[^\s'\"@]{3,}"),
    ("wpa_passphrase", r"\S{1,80}[ ]['\"]?", _ANY),
    ("consul kv put|etcdctl put|vault kv put", r"[\w/.-]{0,80}(?:passw\w{0,4}|secret|token|key)[ ]['\"]?", _ANY),
    ("redis-cli|valkey-cli", r"(?:-a|--pass|AUTH(?:[ ][a-z]\w{0,20}(?=[ ]))?)[ ]['\"]?", _ANY),
)  # fmt: skip
_WHOLE = (
    # echo ... | docker login --password-stdin, echo user:... | chpasswd
    (
        "|",
        r"(?i)((?:echo|printf)\s(?:-n\s|-e\s)?['\"]?)([^\s'\"$|]{4,})"
        r"(?=['\"]?\s?\|[^\n]{0,200}(?:-stdin|sudo\s-\w{0,4}S|passwd|cryptsetup|kinit|secret\screate|su\s))",
    ),
    ("<<<", r"(?i)((?:chpasswd|passwd|kinit|su)\b[^\n<]{0,60}<<<[ ]?['\"]?(?:[\w.-]{1,32}:)?)([^\s'\"$]{4,})"),
    ("<(", r"(<\((?:echo|printf)\s['\"]?)([^\s'\"$()]{4,})(?=['\"]?\))"),
    ("-user", r"((?<=\s)--?user[ =]['\"]?[\w.-]{1,40}:)(?=[^\s'\"]{0,40}\d[a-zA-Z])([^\s'\":]{6,99})(?=['\"]?(?:\s|\Z))"),
    # expect's answer
    ("assw", r"(?i)(assw(?:or)?d:?[^\n]{0,30}\bsend(?:line)?[ (]['\"])([^'\"\\\n$]{4,})"),
    ("auth ", r"(\bAUTH[ ](?:LOGIN|PLAIN|XOAUTH2)[ ])([A-Za-z0-9+/]{8,}={0,2})(?![\w-])"),
    ("auth ", r"(?m)(^AUTH(?:[ ][a-z]\w{0,20})?[ ]['\"]?)(?=[^\s'\"]{0,99}\d)([^\s'\"]{6,})(?=['\"]?$)"),
)


def _of_table(rows: tuple[tuple[str, str, str], ...]) -> Iterator[tuple[str, str]]:
    """A literal of each program's name, and the expression of its row."""
    for programs, before, secret in rows:
        for program in programs.split("|"):
            literal = program.partition("\\w")[0].partition("s?")[0]
            yield literal, rf"(?i)(?<![\w-])((?:{programs})[ ](?:[^\n|]{{0,300}}?(?<=[\s'\"]))?(?-i:{before}))({secret})"


_BY_OPTION = tuple(_of_table(_OPTIONS))
_BY_PLACE = (*_of_table(_PLACES), *_WHOLE)


def program_spans(text: str, lower: str) -> list[tuple[int, int]]:
    """Where in a text the secrets of programs' own notations stand.

    Args:
        lower: the text in lower case.
    """
    listed = "'-" in text or '"-' in text
    flat, places = _flat(text) if listed else (text, None)
    spans: list[tuple[int, int]] = []
    for sign, pattern in (*_BY_OPTION, *_BY_PLACE) if listed or " -" in lower or "\n-" in lower else _BY_PLACE:
        if sign in lower:
            spans += [found.span(2) for found in re.finditer(pattern, flat)]
    return spans if places is None else [(places[start], places[end - 1] + 1) for start, end in spans]


def _flat(text: str) -> tuple[str, list[int]]:
    """A text whose lists of arguments are command lines, and where each of its characters stood."""
    kept = [*range(len(text))]
    for found in reversed([*re.finditer(r"[\"'],\s{0,4}[\"']", text)]):
        kept[found.start() : found.end()] = [found.start()]
    flat = "".join(text[at] if text[at] not in "\"'" or text[at + 1 : at + 2] != "," else " " for at in kept)
    return flat, kept
