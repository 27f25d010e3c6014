"""docs/reference/commands.md: every command with its usage, arguments, defaults and an example, from the parsers."""

from __future__ import annotations

import argparse
import re

from trainshed.cli import FAMILIES, RUNS, SCREEN
from trainshed.cli.commands import all_commands
from trainshed.cli.parser import parser_of
from trainshed.container.main import USAGE as TRAIN

# One for each command, in the order of the page; tests/jobs/docs runs them.
EXAMPLES = {
    "init": "trainshed init train.py --force",
    "run": "trainshed run train.py --hp epochs=3 --channel train=data",
    "chaos": "trainshed chaos job.yaml --every 60s --kinds kill,pause",
    "demo": "trainshed demo",
    "algorithms": "trainshed algorithms",
    "ps": "trainshed ps --all",
    "status": "trainshed status RUN",
    "logs": "trainshed logs RUN -n 20",
    "watch": "trainshed watch RUN --once",
    "report": "trainshed report RUN -o report.html",
    "ui": "trainshed ui --port 8080",
    "predict": "trainshed predict RUN rows.csv -o predictions.csv",
    "resume": "trainshed resume RUN --again",
    "runs rerun": "trainshed runs rerun RUN --output again",
    "stop": "trainshed stop RUN",
    "doctor": "trainshed doctor --cluster",
    "runs ls": "trainshed runs ls --where 'loss < 0.3' --sort -started --limit 10",
    "runs show": "trainshed runs show RUN",
    "runs diff": "trainshed runs diff RUN OTHER",
    "runs tag": "trainshed runs tag RUN +best -draft",
    "runs note": "trainshed runs note RUN 'the warmup was too short'",
    "runs rm": "trainshed runs rm RUN",
    "runs clone": "trainshed runs clone RUN > again.yaml",
    "runs lineage": "trainshed runs lineage RUN --down",
    "runs compare": "trainshed runs compare RUN OTHER",
    "goodput": "trainshed goodput --hosts 1000 --mtbf 8h",
    "tune": "trainshed tune tune.yaml --max-parallel-jobs 2",
    "steps run": "trainshed steps run pipeline.yaml --param epochs=1",
    "steps status": "trainshed steps status",
    "steps show": "trainshed steps show pipeline.yaml --svg steps.svg",
    "steps stop": "trainshed steps stop",
    "models add": "trainshed models add digits RUN --stage champion",
    "models ls": "trainshed models ls digits",
    "models show": "trainshed models show digits@champion",
    "models tag": "trainshed models tag digits:1 --tag team=vision",
    "models get": "trainshed models get digits@champion copy",
    "models rm": "trainshed models rm digits:1 --force",
    "models verify": "trainshed models verify",
    "models merge": "trainshed models merge RUN whole",
    "export kubernetes": "trainshed export kubernetes job.yaml > manifests.yaml",
    "export sagemaker": "trainshed export sagemaker job.yaml > request.json",
    "export algorithm": "trainshed export algorithm image_classification --image 1.dkr.ecr.eu-west-1.amazonaws.com/t:1",
    "export csv": "trainshed export csv RUN --wide -o metrics.csv",
    "export tensorboard": "trainshed export tensorboard RUN -o events",
    "export mlflow": "trainshed export mlflow RUN --to http://127.0.0.1:5000",
    "cache ls": "trainshed cache ls",
    "cache rm": "trainshed cache rm --all",
    "cache prune": "trainshed cache prune --to 10g",
    "checkpoints": "trainshed checkpoints list checkpoints",
    "attach": "trainshed attach RUN",
    "release": "trainshed release all",
    "schema": "trainshed schema > job.schema.json",
    "describe": "trainshed describe image_classification",
    "train": "train --dry-run",
    "check-image": "trainshed check-image trainshed:cpu",
    "metrics show": "trainshed metrics show RUN --csv",
    "metrics test": "trainshed metrics test train.log --regex \"loss='loss': ([0-9.]+)\"",
    "profile": "trainshed profile RUN --steps 3",
    "data show": "trainshed data show data",
    "data check": "trainshed data check tabular data --hp target=income",
    "data bench": "trainshed data bench data --workers 0,2",
    "plan": "trainshed plan --stages 2 --microbatches 4 train.py",
    "verify": "trainshed verify train.py -n 2 --hp epochs=1",
    "completion": "trainshed completion bash > trainshed.bash",
}


def commands_text() -> str:
    """The body of the page."""
    shown = {name for names in SCREEN.values() for name in names}
    more = [name for name in all_commands() if name not in {*shown, *FAMILIES, *RUNS}]
    groups = {title.capitalize(): [name for name in names if name not in RUNS] for title, names in SCREEN.items()}
    groups |= {f"The family `{name}`": [name] for name in FAMILIES} | {"More": more}
    return "".join(f"## {title}\n\n{''.join(_command(name) for name in names)}" for title, names in groups.items())


def _command(name: str) -> str:
    if name == "train":
        return _section("train", all_commands()[name].summary, TRAIN.rstrip().splitlines())
    if name == "runs":
        return "".join(_parsed(f"runs {one}", parser_of(one, "runs")[1]) for one in RUNS)
    return _parsed(name, parser_of(name)[1])


def _parsed(name: str, parser: argparse.ArgumentParser) -> str:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if inner:
        helps = {one.dest: one.help for one in inner[0]._choices_actions}
        parts = [f"{_sentence(parser.description)}\n\n{_sentence(parser.epilog)}\n\n".replace("\n\n\n\n", "\n\n")]
        for word, one in inner[0].choices.items():
            one.description = one.description or helps.get(word)
            parts.append(_parsed(f"{name} {word}", one))
        return "".join(parts)
    usage = [line.strip() for line in (parser.usage or _usage(name, parser)).splitlines()]
    also = f"\n\n`trainshed {name.split()[1]}` is the same." if name.startswith("runs ") else ""
    body = _arguments(name, parser)
    return _section(f"trainshed {name}", f"{_sentence(parser.description)}{also}", usage, body, _sentence(parser.epilog))


def _section(title: str, description: str, usage: list[str], body: str = "", after: str = "") -> str:
    name = title.removeprefix("trainshed ")
    block = "".join(f"{line}\n" for line in ["```text", *usage, "```"])
    text = f"### {title}\n\n{description}\n\n{block}\n{body}"
    return f"{text}{after}{chr(10) * 2 if after else ''}Example:\n\n    {EXAMPLES[name]}\n\n"


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    """As argparse would say it, whatever the version of Python and the width of the screen."""
    words = [f"trainshed {name}"]
    if any(action.option_strings for action in _shown(parser)):
        words.append("[options]")
    for action in parser._actions:
        if not action.option_strings:
            text = _metavar(action)
            shapes = {"?": "[{}]", "*": "[{} ...]", "+": "{} ...", argparse.REMAINDER: "{} ..."}
            words.append(shapes.get(str(action.nargs), "{}").format(text))
    return " ".join(words)


def _arguments(name: str, parser: argparse.ArgumentParser) -> str:
    """One table of all arguments; those of a job stand with `trainshed run` alone."""
    jobs = [(one.dest, one.help) for one in _shown(parser_of("run")[1]) if one.option_strings and name != "run"]
    actions = [one for one in _shown(parser) if (one.dest, one.help) not in jobs]
    if not actions:
        return ""
    rows = "".join(f"| {_spelled(one)} | {_help(parser, one)} |\n" for one in actions)
    shared = len(actions) < len(_shown(parser))
    also = "\nThe flags of [trainshed run](#trainshed-run) that describe a job are taken, too.\n" if shared else ""
    return f"| argument | meaning |\n| --- | --- |\n{rows}{also}\n"


def _shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [one for one in parser._actions if not isinstance(one, hidden) and one.help != argparse.SUPPRESS]


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_cell(_metavar(action))}`"
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(f"`{_cell(flag + value)}`" for flag in action.option_strings)


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    return action.dest.upper()


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices is not None and isinstance(action.metavar, str):
        text += (
            f"; one of {', '.join(map(str, action.choices))}" if not all(str(one) in text for one in action.choices) else ""
        )
    plain = action.default in (None, "", False, 0, argparse.SUPPRESS) or action.default in ([], ())
    if not plain and "default" not in text:
        text += f" (default: {action.default})"
    return _cell(_linked(" ".join(text.split())))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str | None) -> str:
    if not text:
        return ""
    if text.count("\n") > 1:
        return "\n".join(f"    {line}".rstrip() for line in text.strip().splitlines())
    return _linked(f"{text[0].upper()}{text[1:].rstrip('.')}.")


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+)\.md", r"[\1.md](../\1.md)", text)
