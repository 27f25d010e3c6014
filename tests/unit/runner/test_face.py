"""`from trainshed import runner`: the names that it offers."""

from __future__ import annotations

import pkgutil

from trainshed import runner


def test_a_public_name_is_not_the_name_of_a_room() -> None:
    # Importing a submodule sets it as the package's attribute: it would replace the function of its name.
    rooms = {module.name for module in pkgutil.iter_modules(runner.__path__)}

    assert rooms & set(runner.__all__) == set()


def test_public_functions_stay_functions_when_rooms_are_imported() -> None:
    import trainshed.runner.control.execution
    import trainshed.runner.files.run  # noqa: F401

    for _ in range(2):
        assert callable(runner.run) and callable(runner.find) and callable(runner.runs) and callable(runner.make_job)
