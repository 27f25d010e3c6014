"""Asks the package that is called `sagemaker_training`, whichever it is, and prints its answers as one line of JSON."""

import json
import sys

from sagemaker_training import content_types, encoders, environment, errors, functions, mapping, params

HYPERPARAMETERS = {"b": 1, "a": 0.5, "c": True, "d": None, "e": [1, "x"], "f": {"y": 2, "x": "z"}, "k": "text", "g": "é"}


def function(a, b, *, k=3):
    """Takes three of them."""


def text(error):
    """What an error says."""
    return str(error)


def wrapped():
    """What `error_wrapper` makes of an exception."""
    try:
        functions.error_wrapper(lambda: 1 / 0, errors.ImportModuleError)()
    except errors.ClientError as error:
        return [type(error).__name__, str(error)]


env = environment.Environment()
split = mapping.split_by_criteria(HYPERPARAMETERS, keys=["a"], prefix="b")
answers = {
    "environment": dict(env),
    "properties": sorted(env.properties()),
    "length": len(env),
    "one": env["hosts"],
    "arguments": env.to_cmd_args(),
    "variables": sorted(env.to_env_vars()),
    "s3_output": env.sagemaker_s3_output(),
    "folders": [
        environment.model_dir,
        environment.input_dir,
        environment.output_data_dir,
        environment.channel_path("train"),
    ],
    "read": [environment.read_hyperparameters(), environment.read_resource_config(), environment.read_input_data_config()],
    "to_cmd_args": mapping.to_cmd_args(HYPERPARAMETERS),
    "to_env_vars": mapping.to_env_vars({**HYPERPARAMETERS, "bytes": b"caf\xe9"}),
    "split": [split.included, split.excluded],
    "params": {name: value for name, value in vars(params).items() if name.isupper() and isinstance(value, (str, tuple))},
    "content_types": {name: value for name, value in vars(content_types).items() if name.isupper()},
    "encoded": [
        encoders.encode([[1, 2], [3, 4]], content_types.CSV),
        encoders.encode([1.5, 2], content_types.CSV),
        encoders.encode([[1, 2]], content_types.JSON),
        encoders.decode(encoders.encode([[1, 2]], content_types.NPY), content_types.NPY).tolist(),
        encoders.decode("1,2\n3,4\n", content_types.CSV).tolist(),
        encoders.csv_to_numpy("1,2\n", dtype=int).tolist(),
        encoders.csv_to_numpy("a,2\n").tolist(),
        encoders.decode("[1, 2]", content_types.JSON).tolist(),
    ],
    "errors": [
        text(errors.ExecuteUserScriptError("python a.py", 3, b"why")),
        text(errors.InstallRequirementsError(["pip"], 1, None, info="more")),
        text(errors.ChannelDoesNotExistError("x")),
    ],
    "wrapped": wrapped(),
}
print("ANSWERS" + json.dumps(answers, sort_keys=True), flush=True)
sys.exit(0)
