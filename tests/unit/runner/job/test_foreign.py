"""Another tool's file in the place of a job file is named, with what to write."""

from __future__ import annotations

from pathlib import Path

from trainshed.base.errors import JobError
from trainshed.runner.job.request import read_file

KUBEFLOW = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec: {}\n"
FILES = {  # the file: whose it is, a part of what to write
    KUBEFLOW: ("a PyTorchJob of Kubernetes", "distribution: torchrun"),
    f"apiVersion: v1\nkind: Service\n---\n{KUBEFLOW}": ("a PyTorchJob of Kubernetes", "--on kubernetes"),
    "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n": ("a TrainJob of Kubernetes", "numNodes"),
    "apiVersion: batch/v1\nkind: Job\n": ("a Job of Kubernetes", "`image:` and `program:`"),
    '{"apiVersion": "ray.io/v1", "kind": "RayJob"}': ("a RayJob of Kubernetes", "distribution: ray"),
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n": ("of Accelerate", "distribution: {accelerate: "),
    '{"zero_optimization": {"stage": 3}}': ("of DeepSpeed", "distribution: torchrun"),
    "base_model: a/b\ndatasets: [{path: c}]\nsequence_len: 512\n": ("of Axolotl", "axolotl train"),
    "model_name_or_path: a/b\nstage: sft\ntemplate: llama3\n": ("of LLaMA-Factory", "llamafactory-cli train"),
    "services:\n  train: {image: a, command: python train.py}\n": ("of Docker Compose", "`image:`"),
    "resources: {accelerators: A100}\nrun: python train.py\n": ("of SkyPilot", "`program:`"),
    '{"HyperParameterTuningJobName": "a", "TrainingJobDefinition": {}}': ("tuning job of SageMaker", "trainshed tune"),
    '{"TrainingJobName": "a", "RoleArn": "b"}': ("not a whole one", "AlgorithmSpecification"),
    "job: job.yaml\nsearch: {lr: [0.1, 1]}\nobjective: loss\n": ("trainshed tune", "trainshed tune"),
    "steps: {a: {job: job.yaml}}\n": ("a pipeline of steps", "trainshed steps run"),
}
OURS = (
    "program: train.py\nrun: 3\nsetup: 4\n",
    "image: a\nhyperparameters: {model_name_or_path: b, stage: sft}\n",
    "image: a\nenvironment: {kind: x}\n",
    "# kind: Job\nimage: a\n",
)


def test_a_file_of_another_tool_is_named_with_what_to_write(tmp_path: Path) -> None:
    wrong = []
    for number, (text, parts) in enumerate(FILES.items()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        try:
            read_file(str(path), [])
            said = "read"
        except JobError as error:
            said = error.message
        if any(part not in said for part in (*parts, str(path))) or said.count(str(path)) > 3:
            wrong.append((text, said))
    assert not wrong


def test_a_job_file_with_other_mistakes_is_still_read_as_one(tmp_path: Path) -> None:
    for text in OURS:
        (tmp_path / "job.yaml").write_text(text)
        assert read_file(str(tmp_path / "job.yaml"), [])
