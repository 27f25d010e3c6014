"""The folders of /opt/ml; `SAGEMAKER_BASE_DIR` moves the root."""

from __future__ import annotations

import os

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_BASE = "/opt/ml"
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz", ".zip")  # that the code may come as
FOLDER_VARIABLES = ("SM_MODEL_DIR", "SM_OUTPUT_DIR", "SM_OUTPUT_DATA_DIR", "SM_OUTPUT_INTERMEDIATE_DIR")


class Paths(Record):
    """Absolute paths of one job; `base` is /opt/ml, or `SAGEMAKER_BASE_DIR`."""

    base: str
    model: str
    output: str
    output_data: str
    intermediate: str
    code: str
    checkpoints: str

    @staticmethod
    def of(base: str, environ: Mapping[str, str] | None = None) -> Paths:
        """Returns the paths below `base`; folders in the environment (SM_MODEL_DIR ...) win.

        Relative ones are ignored here; `read_job` reports them.
        """
        environ = {name: (environ or {}).get(name, "") for name in FOLDER_VARIABLES}
        environ = {name: folder for name, folder in environ.items() if folder.startswith("/")}
        base = os.path.abspath(base)
        output = environ.get("SM_OUTPUT_DIR") or f"{base}/output"
        return Paths(
            base=base,
            model=environ.get("SM_MODEL_DIR") or f"{base}/model",
            output=output,
            output_data=environ.get("SM_OUTPUT_DATA_DIR") or f"{output}/data",
            intermediate=environ.get("SM_OUTPUT_INTERMEDIATE_DIR") or f"{output}/intermediate",
            code=f"{base}/code",
            checkpoints=f"{base}/checkpoints",
        )

    @staticmethod
    def from_environment(environ: Mapping[str, str]) -> Paths:
        """The paths that `SAGEMAKER_BASE_DIR` and the SM_* variables ask for."""
        return Paths.of(environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE, environ)

    @property
    def input(self) -> str:
        """The platform's input: config files and data."""
        return f"{self.base}/input"

    @property
    def config(self) -> str:
        """The platform's JSON files."""
        return f"{self.base}/input/config"

    @property
    def input_data(self) -> str:
        """The channels' data, one folder each."""
        return f"{self.base}/input/data"

    @property
    def logs(self) -> str:
        """The ranks' output, one file each."""
        return f"{self.output_data}/logs"

    @property
    def failure(self) -> str:
        """The failure file; the platform shows its first 1,024 characters."""
        return f"{self.output}/failure"

    @property
    def success(self) -> str:
        """An empty file; exists only when the job succeeded."""
        return f"{self.output}/success"

    @property
    def tensors(self) -> str:
        """The folder of what ranks have seen of their tensors, for the rules: a file a process, in the form of `metrics`."""
        return f"{self.output}/tensors"

    @property
    def metrics(self) -> str:
        """`SAGEMAKER_METRICS_DIRECTORY`: JSON lines, one file for each process."""
        return f"{self.output}/metrics/sagemaker"

    @property
    def scraped_metrics(self) -> str:
        """The folder of what `train` finds in the ranks' output: apart, as the platform searches the log itself."""
        return f"{self.output}/metrics/trainshed"

    @property
    def profiler(self) -> str:
        """How the machine was used and where the steps' time went (docs/profiler.md), unless profilerconfig.json says so."""
        return f"{self.output}/profiler"
