"""Arrays to and from NPY, JSON and CSV. numpy is imported when it is needed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from . import content_types, errors


def array_to_npy(array_like: Any) -> bytes:
    """NPY bytes."""
    import numpy

    buffer = io.BytesIO()
    numpy.save(buffer, array_like)
    return buffer.getvalue()


def npy_to_numpy(npy_array: bytes) -> Any:
    """The array in NPY bytes; arrays of Python objects are rejected, since reading them can execute code."""
    import numpy

    return numpy.load(io.BytesIO(npy_array), allow_pickle=False)


def array_to_json(array_like: Any) -> str:
    """JSON of anything that JSON or `tolist` can write."""

    def default(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else json.JSONEncoder().default(value)

    return json.dumps(array_like, default=default)


def json_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """The array in a JSON text."""
    import numpy

    return numpy.array(json.loads(string_like), dtype=dtype)


def array_to_csv(array_like: Any) -> str:
    """CSV, one line for each row."""
    import numpy

    array = numpy.array(array_like)
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n", strict=True).writerows(array.reshape(-1, 1) if array.ndim == 1 else array)
    return stream.getvalue()


def csv_to_numpy(string_like: str, dtype: Any = None) -> Any:
    """The array in a CSV text: of floats if there is no type and all values are numbers, else text. Raises ClientError."""
    import numpy

    try:
        array = numpy.array(list(csv.reader(io.StringIO(string_like), strict=True))).squeeze()
    except (csv.Error, ValueError) as error:
        raise errors.ClientError(f"Error while decoding csv: {error}") from error
    try:
        return array.astype(dtype)
    except ValueError as error:
        if dtype is None:
            return array
        raise errors.ClientError(f"Error while writing numpy array: {error}. dtype is: {dtype}") from error


encoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: array_to_npy,
    content_types.CSV: array_to_csv,
    content_types.JSON: array_to_json,
}
_decoders_map: dict[str, Callable[[Any], Any]] = {
    content_types.NPY: npy_to_numpy,
    content_types.CSV: csv_to_numpy,
    content_types.JSON: json_to_numpy,
}


def decode(obj: Any, content_type: str) -> Any:
    """An array from one of the three. Raises errors.UnsupportedFormatError."""
    if content_type not in _decoders_map:
        raise errors.UnsupportedFormatError(content_type)
    return _decoders_map[content_type](obj)


def encode(array_like: Any, content_type: str) -> Any:
    """An array as one of the three. Raises errors.UnsupportedFormatError."""
    if content_type not in encoders_map:
        raise errors.UnsupportedFormatError(content_type)
    return encoders_map[content_type](array_like)
