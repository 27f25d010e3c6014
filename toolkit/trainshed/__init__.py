"""trainshed turns any container image into a training image. See README.md and docs/.

    import trainshed
    done = trainshed.run("train.py", hyperparameters={"epochs": 3})
    done.status["TrainingJobStatus"], done.metrics, done.model

What is loaded late has its types in __init__.pyi: an import here, even one for types alone, would close a circle.
"""

__version__ = "0.2.0.dev0"
__all__ = [
    "Comparison", "JobFailed", "Pipeline", "Training", "Tuning", "compare", "find", "make_job", "predict", "report",
    "resumable", "run", "runs", "steps", "tune",
]  # fmt: skip
_OF_TRAININGS = {"resumable": "trainshed.checkpoint.in_place"}  # for a training's own code, which the rest is not for
_OF_STUDIO = {"Comparison", "Pipeline", "Tuning", "compare", "report", "steps", "tune"}  # a wing, which may be left out


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # what is loaded late is there for whoever looks, too


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module  # by name: every module begins with this one, which must need none of them

        if name not in _OF_STUDIO:
            return getattr(import_module(_OF_TRAININGS.get(name, "trainshed.runner")), name)
        return getattr(import_module("trainshed.base.wings").module_of_wing("studio.python_api", f"trainshed.{name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
