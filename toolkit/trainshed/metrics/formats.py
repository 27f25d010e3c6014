"""How common programs print their metrics: what each format's lines look like, and the numbers in them."""

from __future__ import annotations

import json
import re

from trainshed.contract.wire.metric_lines import PREFIX

from .points import PLACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # The metrics of a line in order, and where they were measured; None for a line of another form.
    Found = tuple[list[tuple[str, float]], dict[str, str | float]]
    Format = Callable[[str], "Found | None"]
    # Texts of which such a line has one, and the format.
    Signed = tuple[tuple[str, ...], Format]

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[iI]nf(?:inity)?|[nN]a[nN])"
_TAGS = re.compile(r"(?:\[[^\]\n]*\] )*")  # who printed the line: `[algo-1] [rank 0] `
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08]")
_PAIR = re.compile(r"(?<![\w./:-])([A-Za-z_][\w./:-]*)=(\S+)")
# The whole of a dictionary of numbers, quoted or not: transformers prints numbers up to version 4, texts from 5 on.
_ITEM = rf"'([A-Za-z_][^'\n]*)': ('?){NUMBER}\2"
_DICTIONARY = re.compile(rf"\{{{_ITEM}(?:, '[^'\n]+': '?{NUMBER}'?)*\}}")
_ITEMS = re.compile(rf"'([^'\n]+)': '?({NUMBER})'?")
_KERAS = re.compile(r"^(\d+)/(\d+) .*? - [A-Za-z_]\w*: ")
_KERAS_ITEM = re.compile(rf" - ([A-Za-z_]\w*): ({NUMBER})(?= - |\s*$)")
_KERAS_EPOCH = re.compile(r"^Epoch (\d+)/\d+\s*$")
_BAR = re.compile(r"(\d+)/(\d+) \[[^\]]*?(?:it/s|s/it)(?:, ([^\]]*))?\]")
_BAR_ITEM = re.compile(rf"(?<![\w./-])([A-Za-z_][\w./-]*)=({NUMBER})(?=[,\s]|$)")
_BAR_EPOCH = re.compile(r"\b[Ee]poch[ :]*(\d+)")
_CELLS = re.compile(rf"^[│|]\s+(\S+)\s+[│|]\s+({NUMBER})\s+[│|]\s*$")
# No comma within a number: `1,234` must not become 1. A percentage is taken as it is printed; `50%|` begins a bar.
_LOOSE = re.compile(rf"(?<![\w.])([A-Za-z_][\w./-]*)(?:\s*[=:]\s*|\s+)({NUMBER})(?=[\s;:|)\]]|%(?![\w|])|,(?!\d)|/\d|$)")
_OF = re.compile(r"/(\d+)(?![\d.])")
_SURE = re.compile(rf"(?<![\w.])[A-Za-z_][\w./-]*\s*[=:]\s*{NUMBER}%?")
_CERTAIN = re.compile(r"(?:.*[_./-])?(?:loss|acc|accuracy|perplexity|ppl|bleu|f1|auc|reward)(?:[_./-].*)?", re.IGNORECASE)
_LAST_WORD = re.compile(r"([A-Za-z]\w*)[ \t-]*\Z")
_TELLING = re.compile(r"loss|acc|error|perplexity|bleu|f1|auc|reward", re.IGNORECASE)
_NOT_MEASURED = frozenset({"v_num", "time", "timestamp", "ts", "asctime", "created", "pid", "lineno", "port", "seed"})


def metric_line(line: str) -> Found | None:
    """`metric loss=0.125 step=10`, what every program may print."""
    return _pairs(_PAIR.findall(line)) if line.startswith(PREFIX) else None


def hf(line: str) -> Found | None:
    """transformers' Trainer: `{'loss': 0.69, 'learning_rate': 5e-05, 'epoch': 0.5}`; quoted numbers since version 5."""
    match = _DICTIONARY.search(line)
    if match is None:
        return None
    items = _ITEMS.findall(match[0])
    names = {name for name, _ in items}
    known = names & {"epoch", "loss", "step"} or any(name.startswith(("eval_", "train_")) for name in names)
    return _pairs(items) if known else None


class Keras:
    """Keras, `10/10 - 1s - 5ms/step - loss: 0.4 - val_loss: 0.5`, below the line `Epoch 1/5`."""

    def __init__(self) -> None:
        self._epoch = 0

    def __call__(self, line: str) -> Found | None:
        if epoch := _KERAS_EPOCH.match(line):
            self._epoch = int(epoch[1])
            return [], {}
        match = _KERAS.match(line)
        if match is None:
            return None
        if match[1] != match[2]:  # a bar that is still growing holds means of a part of the epoch
            return [], {}
        found = _pairs(_KERAS_ITEM.findall(line))
        return found and (found[0], {"epoch": self._epoch} if self._epoch else {})


def tqdm(line: str) -> Found | None:
    """A bar: `Epoch 1: 100%|##| 10/10 [00:01<00:00, 9.5it/s, loss=0.4]`."""
    match = _BAR.search(line)
    if match is None or not match[3]:
        return None
    found = _pairs(_BAR_ITEM.findall(match[3]))
    if found is None:
        return None
    values, places = found
    epoch = _BAR_EPOCH.search(line[: match.start()])
    return values, {"step": match[1], **({"epoch": epoch[1]} if epoch else {}), **places}


def lightning(line: str) -> Found | None:
    """Lightning: its bar is tqdm's; what was tested comes as a table, `│ test_loss │ 0.4 │`."""
    if cells := _CELLS.match(line):
        return _pairs([(cells[1], cells[2])])
    return tqdm(line)


def json_line(line: str) -> Found | None:
    """An object with numbers: `{"step": 10, "loss": 0.4}`."""
    if not (line.startswith("{") and line.endswith("}")):
        return None
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    numbers = [(name, value) for name, value in fields.items() if _is_number(value)]
    return _pairs(numbers) if _tells([name for name, _ in numbers]) else None


def kv(line: str) -> Found | None:
    """Pairs in a sentence: `step 10: loss=0.4, lr: 5e-05`, `Epoch 3 | loss 0.4`."""
    matches = loose(line)
    if len(matches) == 1 and not _alone(line, matches[0]):
        return None
    items = [(name, _value(line, match)) for name, match in zip(names_of(line, matches), matches, strict=True)]
    return _pairs(items) if _tells([name for name, _ in items]) else None


def _alone(line: str, match: re.Match[str]) -> bool:
    """Whether one pair of a line is surely measured: it is the whole line, or like `loss=0.4` or `loss 0.4` in it."""
    if _SURE.fullmatch(line):
        return _TELLING.search(match[1]) is not None
    joined = line[match.end(1) : match.start(2)].strip() or not match[2].isdecimal()
    return bool(joined) and _CERTAIN.fullmatch(match[1]) is not None


def names_of(line: str, matches: list[re.Match[str]]) -> list[str]:
    """The names of pairs; those that a line has twice with the word before: `train loss 0.5, val loss 0.4`."""
    names = [match[1] for match in matches]
    if len({*names}) == len(names):
        return names
    words = [_LAST_WORD.search(line, 0, match.start(1)) if names.count(match[1]) > 1 else None for match in matches]
    return [f"{word[1]}_{name}" if word else name for name, word in zip(names, words, strict=True)]


def loose(line: str) -> list[re.Match[str]]:
    """Names and the numbers after them, where the name or what stands between says that they belong together."""
    return [
        match
        for match in _LOOSE.finditer(line)
        if (line[match.end(1) : match.start(2)].strip() or match[1].lower() in PLACES or _TELLING.search(match[1]))
        and (not _is_counted(line, match) or _share(line, match) is not None)
    ]


def has_counts(line: str) -> bool:
    """Whether any pair of a line has a total."""
    return any(_is_counted(line, match) for match in _LOOSE.finditer(line))


def _is_counted(line: str, match: re.Match[str]) -> bool:
    """Whether a number that is no place in the training has a total behind it, as in `Accuracy: 9905/10000`."""
    return line.startswith("/", match.end()) and match[1].lower() not in PLACES


def _share(line: str, match: re.Match[str]) -> float | None:
    """What a count is of its total: 0.9905. None where they are no such numbers of something measured."""
    total = _OF.match(line, match.end())
    if total is None or not match[2].isdecimal() or not _TELLING.search(match[1]):
        return None
    counted, of = int(match[2]), int(total[1])
    return counted / of if counted <= of and of else None


def _value(line: str, match: re.Match[str]) -> str | float:
    share = _share(line, match) if _is_counted(line, match) else None
    return match[2] if share is None else share


def _tells(names: list[str]) -> bool:
    """Whether these are the names of something measured in a training, not of any structured log."""
    places = [name for name in names if name.lower() in PLACES]
    return any(_TELLING.search(name) for name in names) or (bool(places) and len(names) > len(places))


def _pairs(items: Sequence[tuple[str, str | float]]) -> Found | None:
    values: list[tuple[str, float]] = []
    places: dict[str, str | float] = {}
    for name, text in items:
        if name.lower() in PLACES:
            places[name.lower()] = text
        elif name not in _NOT_MEASURED:
            try:
                values.append((name, float(text)))
            except (ValueError, OverflowError):
                continue
    return (values, places) if values or places else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain(line: str) -> str:
    """A line without who printed it, colours, and frames of a bar that later ones have painted over."""
    if "\r" in line:
        line = next((frame for frame in reversed(line.split("\r")) if frame.strip()), "")
    if "\x1b" in line or "\x08" in line:
        line = _ANSI.sub("", line)
    tags = _TAGS.match(line) if line.startswith("[") else None
    return line[tags.end() :].strip() if tags else line.strip()


def may_tell(line: str) -> bool:
    """Whether a line has a sign of any format: all of `chosen`, written out."""
    return (
        "loss" in line or "step" in line or "poch" in line or "acc" in line or "iter" in line or "{" in line
        or "Loss" in line or "Step" in line or "Acc" in line or "Iter" in line or "reward" in line
        or "it/s" in line or "s/it" in line or " - " in line or "|" in line or "│" in line or PREFIX in line
    )  # fmt: skip


def chosen(name: str) -> tuple[Signed, ...]:
    """The formats that a setting asks for, the surest first.

    Args:
        name: `auto` for all, `off` for none but `metric ...` lines, or one of the others of `metric_lines.FORMATS`.
    """
    every: dict[str, Signed] = {
        "hf": (("{'",), hf),
        "keras": (("poch ", " - "), Keras()),
        "lightning": (("it/s", "s/it", "│", "|"), lightning),
        "tqdm": (("it/s", "s/it"), tqdm),
        "json": (("{",), json_line),
        "kv": (("loss", "Loss", "step", "Step", "poch", "acc", "Acc", "iter", "Iter", "reward"), kv),
    }
    own: Signed = ((PREFIX,), metric_line)
    if name == "auto":
        return (own, *(every[key] for key in ("hf", "keras", "lightning", "json", "kv")))
    return (own, every[name]) if name in every else (own,)
