"""Which features of parallel training go together, as far as settings tell: docs/reference/combinations.md shows it.

Whoever reads settings asks `refusal`, so that a job ends with these words before anything starts. What no row of `TABLE`
names goes together. Refusals that depend on a model or an optimizer are where those are known.
"""

from __future__ import annotations

from trainshed.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

# Settings that turn a feature on where they are not their default, and what the feature is called.
FEATURES = {
    "pipeline_parallel_degree": "stages",
    "tensor_parallel_degree": "tensor groups",
    "context_parallel_degree": "context groups",
    "sharded_data_parallel_degree": "shards of parameters",
    "shard_optimizer_state": "shards of optimizer states",
    "delayed_parameter_initialization": "models without values",
    "activation_checkpointing": "activation checkpoints",
    "offload_activations": "activations on the CPU",
    "offload_optimizer_state": "optimizer states on the CPU",
    "fp16": "float16",
    "bf16": "bfloat16",
    "master_weights": "master weights",
    "fp8": "float8",
    "prescaled_batch": "one batch a group",
    "degrees": "degrees that the job chooses",
}
# What may be needed besides, as messages say it.
_NEEDED = {"pipeline_parallel_degree": "stages", "prescaled_batch": "prescaled_batch = true"}


class Combination(Record):
    """Features that do not go together, or only if another one joins them.

    of: the settings of these features.
    needs: the setting of the feature that they need besides; "" where nothing helps.
    why: in a sentence.
    hint: what to do instead.
    """

    of: tuple[str, ...]
    needs: str
    why: str
    hint: str

    @property
    def verdict(self) -> str:
        """In a word or two."""
        return f"needs {_NEEDED[self.needs]}" if self.needs else "no"

    @property
    def message(self) -> str:
        """What is wrong, for who asks for them."""
        first, *others = ("degrees = 'auto'" if name == "degrees" else name for name in self.of)
        return f"{first} together with {' and '.join(others)} {self.verdict if self.needs else 'is not supported'}"


_TENSOR, _CONTEXT, _SHARDS = "tensor_parallel_degree", "context_parallel_degree", "sharded_data_parallel_degree"
_STAGES, _MASTERS, _DELAYED = "pipeline_parallel_degree", "master_weights", "delayed_parameter_initialization"
TABLE = (
    Combination(("fp16", "bf16"), "", "Forwards run in one type.", "leave one of the two out"),
    *(
        Combination(
            ("activation_checkpointing", name),
            _STAGES,
            "The modules that run again are units of a plan, and there is a plan for stages alone.",
            "leave it out, and checkpoint modules in the script (torch.utils.checkpoint)",
        )
        for name in (_TENSOR, _SHARDS, _CONTEXT)
    ),
    *(
        Combination(
            ("offload_activations", name),
            _STAGES,
            "What goes to the CPU is what the operations of a stage save.",
            "use torch.autograd.graph.save_on_cpu in the model, or activation checkpoints",
        )
        for name in (_TENSOR, _SHARDS, _CONTEXT)
    ),
    *(
        Combination(
            (name, other),
            "",
            why,
            "leave one of the two out; stages, replicas and shard_optimizer_state go together with it",
        )
        for other, why in (
            ("offload_optimizer_state", "The step on the CPU takes whole parameters, not parts of them."),
            ("fp8", "What stands for a Linear in float8 is not known to what divides Linears."),
        )
        for name in (_TENSOR, _SHARDS)
    ),
    *(
        Combination(
            (_TENSOR, *others),
            "prescaled_batch",
            "All ranks that run a batch together are given the same one; it is said, so that no job reads every batch "
            "several times unnoticed.",
            "the ranks of a tensor group then have one batch: split data by rdp_rank() of rdp_size()",
        )
        for others in ((_STAGES,), (_DELAYED,), (_SHARDS, _MASTERS), (_CONTEXT,))
    ),
    Combination(
        ("degrees", _CONTEXT),
        "",
        "Ways with context groups are not among those that are planned and compared.",
        "give the degrees, or leave context_parallel_degree out",
    ),
    *(
        Combination((_CONTEXT, *others), _STAGES, why, "set pipeline_parallel_degree to 2 or more, or leave one of them out")
        for others, why in (
            ((_SHARDS, _MASTERS), "Stages alone keep masters of what is sharded beside sequences in parts."),
            ((_DELAYED,), "Stages alone make values on the ranks that hold them, where sequences are in parts."),
        )
    ),
)


def refusal(features: Collection[str], may_come: Collection[str] = ()) -> Combination | None:
    """The first row that speaks against features.

    Args:
        features: their settings.
        may_come: settings of features that are still to be chosen.
    """
    for row in TABLE:
        if all(name in features for name in row.of) and row.needs not in (*features, *may_come):
            return row
    return None
