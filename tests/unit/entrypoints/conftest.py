"""The programs as modules, which read and refuse in this process: none of these tests trains a model."""

from support.pictures import boxes, drawn, shapes, transformer  # noqa: F401 (fixtures)
from support.programs import module, options, outside_a_job, program, started_here, train  # noqa: F401 (fixtures)
from support.tuning import data, tune, tuning  # noqa: F401 (fixtures)
