"""The tables of what a program declares of itself in PROGRAM.algorithm.yaml, which `algorithms.declaration` reads."""

from __future__ import annotations

from trainshed.algorithms.declaration import DIRECTIONS, MODES
from trainshed.algorithms.values import SCALES, TYPES

from .field import Field

TUNABLE = (
    Field("range", "words", "the lowest and the highest value to try", most=2),
    Field("scale", "choice", "how values lie between them", choices=SCALES),
)
HYPERPARAMETER = (
    Field("type", "choice", "what its values are", choices=TYPES),
    Field("default", "any", "its value where nobody gives one"),
    Field("required", "switch", "whether a job must give it"),
    Field("range", "words", "the lowest and the highest value; null for no bound", most=2),
    Field("choices", "words", "what may be chosen"),
    Field("or", "words", "words that may stand for a number"),
    Field("help", "text", "what it does, in one line"),
    Field("tunable", "record", "whether a search may choose it, and between what", rows=TUNABLE, short="true"),
    Field("required_with", "mapping", "needed where another hyperparameter has one of these values: a list by its name"),
    Field("changes_nothing", "text", "why it is taken and not used"),
    Field("refused", "text", "why it is refused"),
)
CHANNEL = (
    Field("required", "switch", "whether a job must have it"),
    Field("unless", "text", "a hyperparameter that makes up for it"),
    Field("aliases", "words", "other names of it"),
    Field("content_types", "words", "MIME types that it may have (default: any)"),
    Field("input_modes", "words", f"ways in which it may come: {', '.join(MODES)} (default: all)", most=len(MODES)),
    Field("help", "text", "what is in it, in one line"),
)
METRIC = (
    Field("regex", "text", "what finds it in the log, with one group, the number (default: `metric NAME=NUMBER`)"),
    Field("direction", "choice", "what is good", choices=DIRECTIONS),
    Field("help", "text", "what it measures, in one line"),
)
FIELDS = (
    Field("name", "text", "its name (default: the file's)"),
    Field("program", "text", "file name of the script, beside this file (default: the file's)"),
    Field("description", "text", "what it does"),
    Field("extra", "text", "the extra of trainshed that installs what it needs"),
    Field("needs", "words", "packages that it needs"),
    Field("hyperparameters", "mapping", "its hyperparameters by name", of="record", rows=HYPERPARAMETER),
    Field("channels", "mapping", "its channels by name", of="record", rows=CHANNEL),
    Field("metrics", "mapping", "what it measures, by name", of="record", rows=METRIC),
    Field("hosts", "choice", "on how many hosts it can run (default: many)", choices=("one", "many")),
    Field("distributions", "words", "distributions that it knows (default: any)"),
)
