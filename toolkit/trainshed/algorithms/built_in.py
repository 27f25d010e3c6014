"""The platform's built-in algorithms, and what does their work here.

Names: "Use Amazon SageMaker Built-in Algorithms or Pre-trained Models" of SageMaker's developer guide; repositories of
images: its page "Docker Registry Paths".
"""

from __future__ import annotations

import re

from trainshed.base.record import Record

_IMAGE = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/([a-z0-9-]+)(?::.*|@.*)?")


class BuiltIn(Record):
    """An algorithm of the platform.

    repositories: names of its images. program: ours, "" where there is none. instead: what else to use, or what differs.
    same: whether the program takes the platform's hyperparameters and channels.
    """

    name: str
    repositories: tuple[str, ...] = ()
    program: str = ""
    instead: str = ""
    same: bool = False


BUILT_IN = (
    BuiltIn("XGBoost", ("xgboost", "sagemaker-xgboost"), "tabular", "on CPUs; not served: Pipe mode", True),
    BuiltIn("LightGBM", program="tabular", instead="`library=lightgbm`; not served: dart, goss, rf"),
    BuiltIn("CatBoost", program="tabular", instead="`library=catboost`; one host; texts are categories"),
    BuiltIn(
        "Linear Learner", ("linear-learner",), "linear",
        "one host; a solver, not steps of gradients; not served: hinge, absolute, quantile, Huber and insensitive loss, "
        "moved thresholds, Pipe mode", True,
    ),
    BuiltIn("AutoGluon-Tabular", instead="AutoGluon in a script of your own"),
    BuiltIn("TabTransformer", instead="pytorch-tabular in a script of your own"),
    BuiltIn(
        "Factorization Machines", ("factorization-machines",), "recommend",
        "AdamW; not served: bias_init_*, linear_init_*, uniform and constant factors, eps, rescale_grad", True,
    ),
    BuiltIn("K-Nearest Neighbors", ("knn",), "knn", "exact; not served: reduced dimensions, INNER_PRODUCT", True),
    BuiltIn("K-Means", ("kmeans",), "clustering", "one host; not served: half_life_time_size", True),
    BuiltIn("PCA", ("pca",), "pca", "one host", True),
    BuiltIn("Random Cut Forest", ("randomcutforest",), "anomaly", "an isolation forest: scores from 0 to 1; one host", True),
    BuiltIn("IP Insights", ("ipinsights",), instead="`recommend` on pairs that were seen, and pairs that were not"),
    BuiltIn(
        "DeepAR Forecasting", ("forecasting-deepar",), "forecasting",
        "an epoch is num_batches_per_epoch steps; not served: Parquet, ShardedByS3Key", True,
    ),
    BuiltIn(
        "BlazingText", ("blazingtext",), "text_classification",
        "supervised mode, by a transformer; not served: Word2Vec, vector_dim, word_ngrams, buckets, min_count",
    ),
    BuiltIn("Latent Dirichlet Allocation", ("lda",), instead="scikit-learn's LatentDirichletAllocation"),
    BuiltIn("Neural Topic Model", ("ntm",), instead="BERTopic in a script of your own"),
    BuiltIn("Object2Vec", ("object2vec",), instead="`embeddings` for texts; for tokens of your own, a script of your own"),
    BuiltIn("Sequence-to-Sequence", ("seq2seq",), instead="transformers' Seq2SeqTrainer in a script of your own"),
    BuiltIn("Text Generation (JumpStart)", program="fine_tune", instead="its own names; models in the channel `model`"),
    BuiltIn("Text Classification", program="text_classification", instead="its own names; models in the channel `model`"),
    BuiltIn(
        "Image Classification", ("image-classification", "image-classification-multilabel"), "image_classification",
        "not served: several labels, use_weighted_loss, early_stopping, changed colours; trained weights: channel `model`",
        True,
    ),
    BuiltIn(
        "Object Detection", ("object-detection",), "object_detection",
        "its channels of JSON; a small network or those in the channel `model`, no base_network; not served: RecordIO",
    ),
    BuiltIn(
        "Semantic Segmentation", ("semantic-segmentation",), "semantic_segmentation",
        "its channels and `algorithm`; small networks or those in the channel `model`, no ResNet backbones, resized not cut",
    ),
)  # fmt: skip


def of_image(uri: str) -> BuiltIn | None:
    """The algorithm whose image this is, in the platform's own registries; None for any other image."""
    match = _IMAGE.fullmatch(uri)
    return next((one for one in BUILT_IN if match and match[1] in one.repositories), None)
