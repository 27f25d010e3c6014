"""Runs public example scripts of Amazon's model and data parallel libraries, tiny, on CPUs, through `trainshed run`.

    git clone https://github.com/aws/amazon-sagemaker-examples
    python benchmarks/amazon_scripts.py amazon-sagemaker-examples [--only gpt2_simple] [--ranks 2 4] [--image trainshed:cpu]

The examples lie in the repository's history; the commit of each is named here. Data is made, models are tiny; the settings
arrive as the SageMaker SDK sends them. A script is changed only where `edits` says so: lines that demand CUDA, apex, S3 or a
download. Modules that are not installed and only read files are stood in for (`amazon_scripts/`). Prints one line a run:
script, ranks, the first and the last loss that it prints (with `--ranks 1` there is one stage). Status 1 if a run ends
otherwise than the table says.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from _public_scripts import outcome, run_job

STAND_INS = Path(__file__).with_suffix("")
FOLDER = "training/distributed_training/pytorch/model_parallel"
ARCHIVED = "archived"
WORDS, LENGTH = 64, 16


@dataclass(frozen=True)
class Example:
    """One script.

    commit, folder: where its folder is in the repository.
    hyperparameters: what the job gives it.
    edits: (file, regular expression, what is put there): what has to be changed.
    data: makes the folder of the channel `train`.
    stand_ins: folder below `amazon_scripts/` for what is not installed here.
    refused: what the error says, where the script cannot run.
    ranks: how many it needs at least; 0 for a script of the model parallel library, which takes what it gets.
    needs: the distributions that it needs beside the others, each with the major versions that serve; without them it is
        not run.
    """

    script: str
    commit: str
    folder: str
    hyperparameters: dict[str, object]
    data: Callable[[Path], None]
    edits: tuple[tuple[str, str, str], ...] = ()
    parameters: dict[str, object] = field(default_factory=dict)
    stand_ins: str = "arrays"
    refused: str = ""
    ranks: int = 0
    needs: tuple[tuple[str, range], ...] = ()

    def lacks(self) -> list[str]:
        """What is not installed."""
        found = []
        for name, majors in self.needs:
            try:
                good = int(metadata.version(name).partition(".")[0]) in majors
            except metadata.PackageNotFoundError:
                good = False
            if not good:
                found.append(f"{name}<{majors.stop}")
        return found


def tokens(folder: Path) -> None:
    """Two files with 64 rows of numbers, as the GPT examples read them."""
    dice = random.Random(1)
    for number in range(2):
        with gzip.open(folder / f"train_{number}.json.gz", "wt") as file:
            for _ in range(64):
                ids = [dice.randrange(WORDS) for _ in range(LENGTH)]
                file.write(json.dumps({"input_ids": ids, "attention_mask": [1] * LENGTH}) + "\n")


def masked(folder: Path) -> None:
    """Two files with 64 rows for BERT: masked words, and whether one sentence follows the other."""
    import numpy

    dice = numpy.random.default_rng(1)
    for number in range(4):
        count, chosen = 64, 4
        content = {
            "input_ids": dice.integers(1, WORDS, (count, LENGTH)),
            "input_mask": numpy.ones((count, LENGTH), int),
            "segment_ids": numpy.repeat([[0] * (LENGTH // 2) + [1] * (LENGTH // 2)], count, 0),
            "masked_lm_positions": numpy.stack([1 + dice.permutation(LENGTH - 1)[:chosen] for _ in range(count)]),
            "masked_lm_ids": dice.integers(1, WORDS, (count, chosen)),
            "next_sentence_labels": dice.integers(0, 2, count),
        }
        with open(folder / f"training_{number}.hdf5", "wb") as file:
            numpy.savez(file, **content)
    config = {
        "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64,
        "hidden_act": "gelu", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.02,
        "max_position_embeddings": LENGTH, "type_vocab_size": 2, "vocab_size": WORDS,
    }  # fmt: skip
    (folder / "bert_config.json").write_text(json.dumps(config))


def pictures(folder: Path) -> None:
    """Forty pictures of noise in each of two colours, and how a model is to read them."""
    import numpy
    from PIL import Image

    dice = numpy.random.default_rng(0)
    for number, name in enumerate(("cyan", "magenta")):
        (folder / "images" / name).mkdir(parents=True)
        for index in range(40):
            values = dice.integers(0, 256, (32, 32, 3)).astype("uint8")
            values[..., number] //= 4
            Image.fromarray(values).save(folder / "images" / name / f"{index}.png")
    reader = {
        "image_processor_type": "ViTImageProcessor", "feature_extractor_type": "ViTFeatureExtractor",
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    (folder / "reader").mkdir()
    (folder / "reader/preprocessor_config.json").write_text(json.dumps(reader))


def words(folder: Path) -> None:
    """A tokenizer of a few words; the rows themselves are made by the stand-in for `datasets`."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    known = {"[UNK]": 0, **{f"w{number}": number for number in range(1, WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)


def nothing(_folder: Path) -> None:
    """The script makes its own data."""


DATA_PARALLEL = "train_pytorch_smdataparallel_mnist.py"
VIT = "run_vit_image_classification.py"
ON_CPU = (
    (DATA_PARALLEL, r"if not torch.cuda.is_available\(\):", "if False:"),
    (DATA_PARALLEL, r'torch.device\("cuda"\)', 'torch.device("cpu")'),
    (DATA_PARALLEL, r" +torch.cuda.set_device\(local_rank\)\n +model.cuda\(local_rank\)\n", ""),
)
FALCON = "train.py"
SMALL_ON_CPU = (
    (FALCON, r"True if torch.cuda.get_device_capability\(\)\[0\] == 8 else False", "False"),
    (FALCON, r"torch.cuda.set_device\(args.local_rank\)", "pass"),
    (FALCON, r"torch.cuda.current_device\(\)", 'torch.device("cpu")'),
    (FALCON, r"\.to\(args.local_rank\)", '.to("cpu")'),
    (FALCON, r'f"cuda:\{args.local_rank\}"', '"cpu"'),
    (FALCON, r"non_reentrant_wrapper(.*)offload_to_cpu=True,", r"non_reentrant_wrapper\1"),
    ("utils.py", r"offload_to_cpu=True", "offload_to_cpu=False"),  # torch's FSDP loses what it moves from a CPU to a CPU
    (FALCON, r"use_cache=True", "use_cache=False"),  # transformers 5 adds to the cache again in the recomputation
    (FALCON, r"vocab_size=65024", f"vocab_size={WORDS}"),
    (FALCON, r"num_hidden_layers=32", "num_hidden_layers=2"),
    (FALCON, r"num_attention_heads=71", "num_attention_heads=2"),
    (FALCON, r"hidden_size=4544", "hidden_size=32"),
)
SYNCHRONIZE = ("train.py", r"torch.cuda.synchronize\(\)", "pass")
GPT = {
    "train_batch_size": 8, "val_batch_size": 8, "max_steps": 4, "epochs": 1,
    "max_context_width": LENGTH, "vocab_size": WORDS, "hidden_width": 32, "num_layers": 4, "num_heads": 2, "lr": 0.01,
    "pipeline_parallel_degree": 2, "microbatches": 4,
    "use_distributed_transformer": 0, "checkpoint_freq": 2, "validation_freq": 4, "validation_batches": 1,
    "save_final_full_model": 1, "checkpoint-dir": "/opt/ml/checkpoints",
}  # fmt: skip
EXAMPLES = {
    "mnist": Example(
        "pt_mnist.py", "7ed6accf3^", f"{FOLDER}/mnist/utils", {}, nothing,
        (
            ("pt_mnist.py", r"if not torch.cuda.is_available\(\):", "if False:"),
            ("pt_mnist.py", r'torch.device\("cuda"\)', 'torch.device("cpu")'),
            ("pt_mnist.py", r"/opt/ml/local_checkpoints", "local_checkpoints"),
            ("pt_mnist.py", r" +sync_local_checkpoints_to_s3\(local_path=.*\n", ""),
        ),
        {"optimize": "speed"},
        stand_ins="mnist",
    ),
    "gpt2_simple": Example("train_gpt_simple.py", "2cbfea648", f"{FOLDER}/gpt2", GPT, tokens),
    "gpt2_simple_manual": Example(
        "train_gpt_simple.py", "2cbfea648", f"{FOLDER}/gpt2", {**GPT, "manual_partition": 1}, tokens
    ),
    "gpt2_simple_fp16": Example("train_gpt_simple.py", "2cbfea648", f"{FOLDER}/gpt2", {**GPT, "fp16": 1}, tokens),
    "gpt2_simple_tensor_parallel": Example(
        "train_gpt_simple.py", "2cbfea648", f"{FOLDER}/gpt2", {**GPT, "use_distributed_transformer": 1}, tokens,
        refused="model_creation(tensor_parallelism=True) is not supported",
    ),
    "gpt2": Example(
        "train.py", "HEAD", f"{ARCHIVED}/smp-gpt-sharded-data-parallel", {**GPT, "model_type": "gpt2"}, tokens,
        (SYNCHRONIZE,),
    ),
    "gpt_neox": Example(
        "train.py", "HEAD", f"{ARCHIVED}/smp-train-gpt-neox-sharded-data-parallel", {**GPT, "model_type": "gpt_neox"},
        tokens,
        (SYNCHRONIZE,),
    ),
    "gpt_j": Example(
        "train_gptj_smp_tensor_parallel_script.py", "372b4087e^", f"{FOLDER}/gpt-j",
        {**GPT, "zipped_data": 1, "hidden_width": 128}, tokens,
        (
            ("train_gptj_smp_tensor_parallel_script.py", r"m\.module\.module\.", "m.get_module()."),
            # Its stand-in for ranks that read no data does not know the kind of data that the script asks for.
            ("data_pipeline.py", r'if (data_type == "openwebtext"):(?=\n +self.batch)', r'if \1 or data_type == "GPT":'),
        ),
    ),
    "flan_t5": Example(
        "train.py", "HEAD", f"{ARCHIVED}/smp-train-t5-sharded-data-parallel",
        {**GPT, "model_type": "flan_t5", "intermediate_size": 64, "flash_attention": 0}, tokens,
        (SYNCHRONIZE, ("train.py", r"from t5_flash_attn import add_flash_attn\n", "")),
    ),
    "bert": Example(
        "sagemaker_smp_pretrain.py", "b052e1e1f^", f"{FOLDER}/bert/bert_example",
        {
            "input_dir": "/opt/ml/input/data/train", "config_file": "/opt/ml/input/data/train/bert_config.json",
            "output_dir": "/opt/ml/checkpoints", "max_seq_length": LENGTH, "max_predictions_per_seq": 4,
            "train_batch_size": 8, "learning_rate": 0.01, "max_steps": 6, "steps_this_run": 6, "do_train": 1,
            "smp": 1, "ddp": 1,
            "num_steps_per_checkpoint": 3, "disable_progress_bar": 1, "local_rank": -1,
        },
        masked,
        (
            ("sagemaker_smp_pretrain.py", r"import amp_C\nimport apex_C\n", ""),
            ("sagemaker_smp_pretrain.py", r"from apex[.\w]* import .*\n", ""),
            ("sagemaker_smp_pretrain.py", r"assert torch.cuda.is_available\(\)", "pass"),
            ("sagemaker_smp_pretrain.py", r'torch.device\("cuda", smp.local_rank\(\)\)', 'torch.device("cpu")'),
            ("sagemaker_smp_pretrain.py", r"(torch.tensor\(average_loss, dtype=torch.float32\)).cuda\(\)", r"\1"),
            ("sagemaker_smp_pretrain.py", r" +from smdistributed.modelparallel.test.*\n", ""),
            ("sagemaker_smp_pretrain.py", r" +sync_local_checkpoints_to_s3\(\n.*\n +\)\n", ""),
        ),
    ),
    "vit": Example(
        VIT, "9f46c9ff9", f"{FOLDER}/vit",
        {
            "model_name_or_path": "/opt/ml/input/data/train/reader", "train_dir": "/opt/ml/input/data/train/images",
            "train_val_split": 0.2, "output_dir": "/opt/ml/checkpoints", "do_train": True, "do_eval": True,
            "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "num_train_epochs": 1, "logging_steps": 1,
            "learning_rate": 0.003, "save_steps": 2, "remove_unused_columns": False, "overwrite_output_dir": True,
            "report_to": "none", "seed": 7,
        },
        pictures,
        (
            (VIT, r", send_example_telemetry", ""),
            (VIT, r" +send_example_telemetry\(.*\n", ""),
            (VIT, r' +task="image-classification",\n', ""),
            (VIT, r"( +# If we don't have a validation)", r'    dataset = dataset.rename_column("label", "labels")\n\1'),
            (VIT, r'evaluate.load\("accuracy"\)', "None"),
            (VIT, r"metric.compute\(predictions=(.*), references=(.*)\)", r'{"accuracy": float((\1 == \2).mean())}'),
            (VIT, r"feature_extractor\.size\b", 'feature_extractor.size["height"]'),
            (VIT, r"'/opt/ml/model'", 'os.environ["SM_MODEL_DIR"]'),
            (VIT, r"hidden_size=1536", "hidden_size=32"),
            (VIT, r"num_hidden_layers=12", "num_hidden_layers=4"),
            (VIT, r"num_attention_heads=12", "num_attention_heads=2"),
            (VIT, r"intermediate_size=3072", "intermediate_size=64"),
            (VIT, r"image_size=224", "image_size=32"),
            (VIT, r"(patch_size|encoder_stride)=16", r"\1=8"),
        ),
        needs=(("transformers", range(4, 5)), ("datasets", range(2, 4)), ("evaluate", range(1)), ("torchvision", range(1)),
               ("pillow", range(9, 99))),
    ),
    "data_parallel_1": Example(
        DATA_PARALLEL, "1938d0b99", "training/distributed_training/pytorch/data_parallel/mnist/code",
        {"epochs": 2, "log-interval": 1}, nothing, ON_CPU, stand_ins="mnist", ranks=8,
    ),
    "data_parallel_2": Example(
        DATA_PARALLEL, "HEAD", "build_and_train_models/sm-distributed_data_parallelism_pytorch/code",
        {"epochs": 2, "log-interval": 1}, nothing, ON_CPU, stand_ins="mnist", ranks=8,
    ),
    "data_parallel_falcon": Example(
        FALCON, "e6c9ffc70",
        "training/distributed_training/pytorch/data_parallel/fully_sharded_data_parallel/falcon/scripts",
        {
            "model_id": "/opt/ml/input/data/train", "per_device_train_batch_size": 2, "num_train_epochs": 4,
            "learning_rate": 0.01, "model_dir": "/opt/ml/model",
        },
        words, SMALL_ON_CPU, stand_ins="falcon", ranks=4,
    ),
}  # fmt: skip


def take(repository: str, example: Example, folder: Path) -> None:
    """The example's folder as it was at its commit, with the edits; without what pip would install."""
    listed = ["git", "-C", repository, "ls-tree", "-r", "-z", example.commit]
    tree = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    for entry in filter(None, tree.split("\0")):
        facts, path = entry.split("\t")
        home, _, inside = path.strip().partition(f"{example.folder}/")
        if home or not inside.endswith(".py"):
            continue
        content = subprocess.run(
            ["git", "-C", repository, "cat-file", "blob", facts.split()[2]], check=True, capture_output=True
        )
        target = folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.stdout)
    for name, pattern, put in example.edits:
        changed, times = re.subn(pattern, put, (folder / name).read_text())
        assert times, f"{name} has no {pattern}"
        (folder / name).write_text(changed)


def run(repository: str, example: Example, ranks: int, image: str) -> tuple[int, str]:
    """Exit status and log of a job, in containers of an image, else in processes."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        (home / "data").mkdir()
        take(repository, example, home / "code")
        example.data(home / "data")
        settings = {"partitions": min(2, ranks), "microbatches": 4, "ddp": True, **example.parameters}
        if "pipeline_parallel_degree" in example.hyperparameters:
            example.hyperparameters["pipeline_parallel_degree"] = settings["partitions"]
        given = {
            name: str(value).replace("/opt/ml", "/opt/ml" if image else str(home / "out/algo-1"))
            for name, value in example.hyperparameters.items()
        }
        distribution: dict[str, object] = {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": settings}},
            "mpi": {"enabled": True, "processes_per_host": ranks},
        }
        if example.ranks:
            distribution = {"smdistributed": {"dataparallel": {"enabled": True}}}
            given["trainshed_processes_per_host"] = str(ranks // 2)
        job = {
            "program": example.script,
            "source_dir": str(home / "code"),
            "hyperparameters": given,
            "channels": {"train": str(home / "data"), "test": str(home / "data")},
            "distribution": distribution,
            "instances": 2 if example.ranks else 1,
        }
        return run_job(home, job, STAND_INS / example.stand_ins, {"TRANSFORMERS_VERBOSITY": "error"}, image)


def main() -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", help="a clone of github.com/aws/amazon-sagemaker-examples")
    parser.add_argument("--only", nargs="*", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--image", default="", help="run each host as a container of it")
    parser.add_argument("--logs", help="a folder for the logs")
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.only:
        example = EXAMPLES[name]
        if lacking := example.lacks():
            print(f"{name:28} not run: it needs {', '.join(lacking)}", flush=True)
            continue
        for ranks in [example.ranks] if example.ranks else arguments.ranks:
            status, log = run(arguments.repository, example, ranks, arguments.image)
            if arguments.logs:
                Path(arguments.logs, f"{name}-{ranks}.log").write_text(log)
            printed = log.partition("\ncompleted ")[0]
            losses = re.findall(r"\b(?:[Ll]oss'?:?\s+|train_loss=tensor\()([0-9.]+(?:e-?[0-9]+)?)", printed)
            good, result = outcome(status, log, [f"{float(one):.4f}" for one in losses], example.refused)
            wrong += not good
            print(f"{name:28} {ranks} ranks  {result}{'' if good else '  <-- not as the table says'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
