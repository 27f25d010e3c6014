"""Run in an environment of Amazon's: writes tensors with its writers into a folder, and says which as JSON."""

import json
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(sys.argv[1])
FEATURES = (np.arange(35).reshape(7, 5) - 9) / 4
LABELS = np.arange(7) * 3 - 4
told = {}


def write(name, writer, features, labels):
    """A file of that name; what was written, with zeros where it is sparse."""
    with open(FOLDER / name, "wb") as file:
        writer(file, features, labels)
    dense = features if isinstance(features, np.ndarray) else features.toarray()
    told[name] = {
        "features": dense.tolist(),
        "dtype": str(dense.dtype).replace("int64", "int32"),  # it has no longer ones
        "label": None if labels is None else labels.tolist(),
        "label_dtype": "" if labels is None else str(labels.dtype).replace("int64", "int32"),
        "sparse": not isinstance(features, np.ndarray),
    }


try:
    from sagemaker_training.recordio import _write_numpy_to_dense_tensor as dense
    from sagemaker_training.recordio import _write_spmatrix_to_sparse_tensor as sparse
except ImportError:
    from sagemaker.amazon.common import write_numpy_to_dense_tensor as dense

    sparse = None

for kind in ("float32", "float64", "int64"):
    write(f"dense-{kind}.pbr", dense, FEATURES.astype(kind), LABELS.astype(kind))
write("no-label.pbr", dense, FEATURES, None)
if sparse is not None:
    from scipy.sparse import csr_matrix

    holes = np.where(np.arange(35).reshape(7, 5) % 3 == 0, FEATURES, 0)
    holes[2] = 0  # a row without any element
    for kind in ("float32", "float64", "int64"):
        write(f"sparse-{kind}.pbr", sparse, csr_matrix(holes.astype(kind)), LABELS.astype("float32"))
print("TOLD" + json.dumps(told))
