"""How much a word looks like a secret, and which words that look so are of a harmless kind."""

from __future__ import annotations

import itertools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PASSWORD = r"(?=.*[A-Za-z])(?=.*[\d!#$%&*@?^~]).{6,}|(?=.*\d)[\w+/=-]{20,}"
# A word with up to four digits, a number with one or two letters: parts of names of models, machines and runs.
_PART = r"(?:[A-Za-z]*\d{0,4}|[a-z]+\d[a-z]+|\d+[A-Za-z]{0,2}|\d{8}T\d{4,6}Z?)"
_NAME_LIKE = rf"{_PART}(?:[-_./:@,]+{_PART})*"
_OF_TRADE = r"(?i:sha|md|base|utf|ed|x|aes|rs|hs|es|oauth|bf|fp|int|sm)\d{1,5}[-_A-Za-z]{0,8}"
# What Kubernetes calls its objects: words, and letters and digits at random.
_OF_CLUSTER = r"(?:[a-z][a-z0-9]*-)+[a-z0-9]{5,10}"
_UUID = r"(?i:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
_HARMLESS = (
    r"\d{4}-\d\d-\d\d(?:[T_ ].*)?|v?\d+(?:\.\d+)+[\w.+-]{0,20}|[\d.,:%x/-]{1,20}[A-Za-z]{0,3}|\d[\d.,]*e[+-]?\d+"
    rf"|(?:[A-Z]{{2,5}}-)?{_UUID}"
    r"|[\w.-]+@[\w-]+\.[\w.-]+|0x[0-9a-fA-F]{1,16}"
    r"|[\w./-]*\.(?:py|json|ya?ml|txt|log|pem|pub|bin|pt|safetensors|toml|cfg|ini|csv|sh|so|whl|md):?\d*"
)
# Pairs of letters that are common in words: 42 % of all pairs, so of random ones 58 % are odd.
_COMMON_PAIRS = (
    "thheineranreonatenndtiesorteofedisitalarsttontngsehaasouiolevecomedehiriroicneearacelichllbemasiomurcaeltala"
    "nsdifohopeecprnoctusacotiltrlyncetutsssorsunlowageiewheewiemadolrtpowenaulnitsmoowpaimmiaishirsuidosiviaamfi"
    "civipligtuevldrympfeblabghtyopwosaayexkefrooavagifapgrodbosprddoucbueiovbyrmepttocfaefcurnscgidayocrcldugaqu"
    "ueffbaeylsvaumppuauplugohtruugdsltpircrregauckewmubrbiptakpuuirgibtlnykirkysobmmfuphogmsyeudmbipuboirlgudrhr"
    "cctwftwnnuafhunneovorvnfxpgnsmflizoknlmyglawjuoaeqsyslpsjolfnvjenkkngsdyhyzeksxtbsikddptrpskxioeoywslvdlrfeu"
    "dgwrxayinmebrbtmxcehtcgyrwlpmnpy"
)
_PAIRS = frozenset(map("".join, zip(_COMMON_PAIRS[::2], _COMMON_PAIRS[1::2], strict=True)))
_DIGIT = r"\d"
_PUBLIC = r"-----BEGIN (?:[A-Z0-9 ]{0,30}PUBLIC KEY|CERTIFICATE(?: REQUEST)?|X509 CRL)-----[A-Za-z0-9+/=\s\\]*"
_LONG_RUN = r"[A-Za-z0-9_./:=+~%-]{18,}"
_ISSUED_RUN = r"[A-Za-z0-9_.:=%-]{18,}"
_LONG_WORD = r"(?<![\w+/.-])[A-Za-z0-9+/_-]{20,199}={0,2}(?![\w+/=])"
# What stands before a long word of a harmless kind, and how one begins.
_BEFORE_DIGEST = (
    r"(?i)(?:sha\d*|h1|md5|digest|hash|commit|etag|checksum|fingerprint|integrity|signature|uuid|ray|id|id-\d|ids|revision|rev"
    r"|nonce|salt|base64|image|img|png|jpe?g|data|blob|pickle|embedding|proto|logo|icon|cursor|continuation)"
    r"[\"'\\]{0,4}[ ]{0,3}[:=,(\[-]{0,2}[ ]{0,3}[bru]?[\"'\\]{0,4}\Z"
)
_BEGINS_HARMLESS = (
    r"_Z|\?|iVBOR|H4sI|UEsDB|k05VTV|/9j/|R0lGOD|AAAA[BCE]|UklGR|PHN2Z|data:|sha\d{3}[-_]|h1[:-]|(?:chatcmpl|cmpl|req|msg|run|call|resp"
    r"|toolu|file|batch|thread|asst|step|org|proj|user|cus|evt|ch|pi|in|sub|ami|vpc|eni|i|vol|snap|subnet|sg|igw|rtb)[-_]"
)


# Measured on 31,216 lines of logs, docs and sources: no line more is masked than by 0.3, and of random words of 20, 32 and
# 40 letters 17, 3 and 1 % are not known, instead of 19, 7 and 3 %.
_CHANGES, _ODD = 0.25, 0.25
_KINDS = {one: "a" if one > 96 else "A" if one > 64 else "0" for one in range(128) if chr(one).isalnum()}


_WORD_ALONE = (
    r"(?<![\w./:$!+-])(?<!\w\[)(?P<word>[^\s\"'`,;()\[\]{}<>=|\\/:$!+][^\s\"'`,;()\[\]{}<>=|\\/:+]{7,59})(?![\w./:(\[+])"
)


def is_password(word: str) -> bool:
    """Whether letters and digits or signs are mixed, as in no word of a sentence; names with a number are, too."""
    if ("/" in word and re.fullmatch(_NAME_LIKE, word)) or re.fullmatch(r"[A-Za-z_][\w.-]*=[^=]+", word):
        return False
    return re.fullmatch(_PASSWORD, word, re.DOTALL) is not None and not is_harmless(word)


def is_hard(word: str) -> bool:
    """Whether a word is a password and not like `gpt-4o-2024`, a name with numbers."""
    return is_password(word) and re.fullmatch(_NAME_LIKE, word) is None


def lone_secrets(line: str) -> list[tuple[int, int]]:
    """Where in a line that speaks of a secret the words stand that can be nothing else."""
    return [
        found.span("word")
        for found in re.finditer(_WORD_ALONE, line)
        if is_hard(found["word"])
        and found["word"][0] not in "Ġ▁"
        and not re.fullmatch(
            rf"{_OF_CLUSTER}|{_OF_TRADE}|[0-9a-f]{{1,31}}|[0-9a-f]+(?:-[0-9a-f]+)+|\D+|.*[/*]{{2}}.*|.*#\d+", found["word"]
        )
        and not re.search(_BEFORE_DIGEST, line[: found.start()])
    ]


def is_harmless(word: str) -> bool:
    """Whether a word is a date, a number, a version, an address of mail, a UUID or a file."""
    return re.fullmatch(_HARMLESS, word) is not None


def is_random(word: str) -> bool:
    """Whether a long word has the letters of no language, and all three kinds of characters."""
    kinds = "".join(filter(None, map(_KINDS.get, word.encode())))
    if kinds.count("a") < 3 or kinds.count("A") < 3 or kinds.count("0") < 2 or len(word) - len(kinds) > len(word) / 6:
        return False
    low = word.lower()
    changes = sum(one != other and (one, other) != ("A", "a") for one, other in itertools.pairwise(kinds))
    pairs = [low[at : at + 2] for at in range(len(word) - 1) if low[at : at + 2].isalpha()]
    odd = sum(pair not in _PAIRS for pair in pairs)
    return changes >= len(kinds) * _CHANGES and (odd >= len(pairs) * _ODD or len(pairs) < len(word) / 4)


def random_spans(text: str, mask: Callable[[str], str], issued: str) -> list[tuple[int, int]]:
    """Where in a text long words stand that are secrets: issued keys, random words, and those that hide a secret.

    Args:
        mask: masks a text; what it changes hides a secret.
        issued: the expression of the keys that services issue.
    """
    spans: list[tuple[int, int]] = []
    if "-----BEGIN " in text:
        text = re.sub(_PUBLIC, lambda block: " " * len(block[0]), text)
    key, part_of_key, long_word = re.compile(issued), re.compile(_ISSUED_RUN), re.compile(_LONG_WORD)
    for run in re.finditer(_LONG_RUN, text):
        keys = [
            found.span()
            for part in part_of_key.finditer(text, *run.span())
            for found in key.finditer(text, max(run.start(), part.start() - 4), part.end())
        ]
        spans += keys + [
            found.span() for found in long_word.finditer(text, *run.span()) if _is_secret_word(text, found, mask)
        ]
    return spans


def _is_secret_word(text: str, found: re.Match[str], mask: Callable[[str], str]) -> bool:
    word = found[0]
    if word.isalpha() or (word.islower() and not re.search(_DIGIT, word)) or re.search(_UUID, word):
        return False
    if (inside := _decoded(word)) is not None:
        return mask(inside) != inside
    return is_random(word) and not re.match(_BEGINS_HARMLESS, word) and not _is_part_of_more(text, found.start())


def _decoded(word: str) -> str | None:
    """The text that base64 or hexadecimal digits hold, if it is one."""
    import binascii

    for decode in (binascii.unhexlify, binascii.a2b_base64):
        try:
            inside = " ".join(decode(word + "=" * (-len(word) % 4)).decode("ascii").split())
        except ValueError:
            continue
        if inside.isprintable():
            return inside
    return None


def _is_part_of_more(text: str, start: int) -> bool:
    before = text[max(0, start - 40) : start]
    if re.search(r"(?i)(?:session|auth|access)[\w-]{0,8}[\"'\\]{0,4}[ ]?[:=][ ]?[\"']?\Z", before):
        return False
    return before[-1:] in ("/", "%", "&", "?", "#", "$", "@") or re.search(_BEFORE_DIGEST, before) is not None
