"""A fitted model on disk: one safetensors file, with JSON for all but arrays; no code is stored.

Everything is validated before use: names, types and shapes of arrays before they are loaded, then
their values and their consistency.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from qkv.atomic_write import replacing
from qkv.optional_dependencies import require
from qkv.regression.adaptive_bandwidth import Nearest
from qkv.regression.columns import Columns, Names, Number
from qkv.regression.kernels import NAMES, as_kernel
from qkv.regression.training_data import Keys, TrainingData, Width
from qkv.similarity import NAMED

FORMAT, VERSION = "qkv.regression", 1
MOST_JSON = 2**26  # bytes

#: Arrays of a file: their type, and their axes, where one letter stands for one size.
ARRAYS = {
    "number": ("F64", "md"),
    "code": ("I64", "mc"),
    "target": ("F64", "mk"),
    "weight": ("F64", "m"),
    "rows": ("I64", "m"),
    "kept": ("U8", "n"),  # which of the rows that were passed to fit are among them
    "bandwidth": ("F64", "d"),
    "smoothing": ("F64", "c"),
    "cv_curve": ("F64", "te"),
}


#: Classes by the kind of their type.
CLASSES = {"b": bool, "i": np.int64, "u": np.uint64, "f": np.float64, "U": str, "O": object}


def save(model: Any, path: Path) -> None:
    """Write a fitted model to `path`, atomically."""
    numpy = require("safetensors.numpy", "regress")
    examples = model.examples_
    is_kept = np.zeros(model.row_count_, dtype=np.uint8)
    is_kept[model.rows_] = 1
    arrays = {
        "number": examples.keys.number,
        "code": examples.keys.code,
        "target": examples.observed(examples.target),
        "rows": model.rows_.astype(np.int64),
        "kept": is_kept,
        "bandwidth": model.bandwidth_,
        "smoothing": model.smoothing_,
        "cv_curve": model.cv_curve_,
    }
    if examples.weight is not None:
        arrays["weight"] = examples.weight
    names = getattr(model, "feature_names_in_", None)
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(model).__name__,
        "parameters": _parameters(model),
        "numbers": [list(column) for column in model.columns_.numbers],
        "names": [list(column) for column in model.columns_.names],
        "feature_names": None if names is None else list(names),
        "neighbors": None if model.width_.neighbors is None else int(model.width_.neighbors),
        "one_output": getattr(model, "_one_output", None),
        "classes": _classes(model),
    }
    text = json.dumps(facts, ensure_ascii=False, allow_nan=False)
    content = numpy.save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"qkv": text},
    )
    with replacing(path) as partial:
        partial.write_bytes(content)


def load(kind: type, path: Path) -> Any:
    """The model of this kind that was saved to `path`."""
    safetensors = require("safetensors", "regress")
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = _facts(file.metadata(), kind, path)
            _check_shapes({name: file.get_slice(name) for name in file.keys()}, path)  # noqa: SIM118
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        _refuse(path, str(error))
    try:
        return _restored(kind, facts, arrays, path)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        _refuse(path, f"its description does not fit ({error})")


def _restored(
    kind: type, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], path: Path
) -> Any:
    parameters = dict(facts["parameters"])
    if isinstance(parameters["bandwidth"], dict):
        parameters["bandwidth"] = Nearest(parameters["bandwidth"]["nearest"])
    model = kind(**parameters)
    model.kernel_ = as_kernel(model.kernel)
    numbers = [Number(*column) for column in facts["numbers"]]
    names = [Names(*column) for column in facts["names"]]
    model.columns_ = Columns(numbers, names)
    model.examples_ = TrainingData.of_observed(
        Keys(arrays["number"], arrays["code"]),
        arrays["target"],
        arrays.get("weight"),
        tuple(each.category for each in names),
    )
    model.rows_ = arrays["rows"].astype(np.intp)
    model.row_count_ = len(arrays["kept"])
    model.width_ = Width(arrays["bandwidth"], arrays["smoothing"], facts["neighbors"])
    model.bandwidth_, model.smoothing_ = arrays["bandwidth"], arrays["smoothing"]
    model.cv_curve_ = arrays["cv_curve"]
    model.n_features_in_ = len(numbers) + len(names)
    if facts["feature_names"] is not None:
        model.feature_names_in_ = np.array([str(name) for name in facts["feature_names"]], object)
    if facts["one_output"] is not None:
        model._one_output = bool(facts["one_output"])
    if facts["classes"] is not None:
        values, dtype = facts["classes"]
        model.classes_ = np.array(values, dtype=CLASSES[dtype])
    _check_values(model, arrays, path)
    return model


def _parameters(model: Any) -> dict[str, Any]:
    parameters = {name: _json(value) for name, value in model.get_params(deep=False).items()}
    kernel = model.kernel
    if not isinstance(kernel, str):
        named = [name for name in NAMES if type(NAMED[name]) is type(kernel)]
        if not named:
            raise ValueError(
                f"a model of one of the kernels {', '.join(NAMES)} can be saved; "
                f"got {type(kernel).__name__}"
            )
        parameters["kernel"] = named[0]
    return parameters


def _json(value: Any) -> Any:
    """Numbers, text, lists and mappings as JSON has them."""
    if isinstance(value, Nearest):
        return {"nearest": int(value.k)}
    if isinstance(value, Mapping):
        return {str(name): _json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_json(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _classes(model: Any) -> list[Any] | None:
    classes = getattr(model, "classes_", None)
    if classes is None:
        return None
    kind = classes.dtype.kind
    if kind == "O" and not all(isinstance(value, str) for value in classes):
        raise ValueError("a classifier whose classes are text or numbers can be saved")
    return [classes.tolist(), kind]


def _facts(metadata: Any, kind: type, path: Path) -> dict[str, Any]:
    text = (metadata or {}).get("qkv", "")
    if not text or len(text) > MOST_JSON:
        _refuse(path, "it does not say what it is")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        _refuse(path, "its description is not JSON")
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        _refuse(path, "it does not say what it is")
    if facts.get("version") != VERSION:
        _refuse(path, f"its version is {facts.get('version')!r}, this qkv reads {VERSION}")
    if facts.get("estimator") != kind.__name__:
        _refuse(path, f"it holds a {facts.get('estimator')}, not a {kind.__name__}")
    return facts


def _check_shapes(slices: dict[str, Any], path: Path) -> None:
    if not set(ARRAYS) - {"weight"} <= set(slices) <= set(ARRAYS):
        _refuse(path, f"its arrays are {', '.join(sorted(slices))}")
    sizes: dict[str, int] = {}
    for name, (dtype, axes) in ARRAYS.items():
        if name not in slices:
            continue
        shape = slices[name].get_shape()
        if slices[name].get_dtype() != dtype or len(shape) != len(axes):
            _refuse(path, f"{name} must be {dtype} with {len(axes)} axes")
        for axis, size in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                _refuse(path, f"{name} has shape {tuple(shape)}, which does not fit the others")
    if sizes["m"] == 0 or sizes["k"] == 0 or sizes["e"] != sizes["d"] + sizes["c"] + 1:
        _refuse(path, "its arrays do not fit each other")


def _check_values(model: Any, arrays: dict[str, npt.NDArray[Any]], path: Path) -> None:
    number, code, examples = arrays["number"], arrays["code"], model.examples_
    columns = model.columns_
    places = sorted(each.place for each in (*columns.numbers, *columns.names))
    neighbors, one_output = model.width_.neighbors, getattr(model, "_one_output", False)
    classes = getattr(model, "classes_", None)
    sound = (
        places == list(range(number.shape[1] + code.shape[1]))
        and len(columns.numbers) == number.shape[1]
        and all(each.counted_in in (None, "days", "seconds") for each in columns.numbers)
        and not np.isinf(number).any()
        and not (np.isnan(number).any() and not model.__sklearn_tags__().input_tags.allow_nan)
        and not (number.shape[1] == 1 and not (np.diff(number[:, 0]) >= 0).all())
        and all(
            ((code[:, at] >= -2) & (code[:, at] < category.size)).all()
            for at, category in enumerate(examples.categories)
        )
        and np.isfinite(examples.target).all()
        and (
            examples.weight is None or ((examples.weight > 0) & np.isfinite(examples.weight)).all()
        )
        and (np.isfinite(model.bandwidth_) & (model.bandwidth_ > 0)).all()
        and all(
            0 <= share <= category.most_smoothing
            for share, category in zip(model.smoothing_, examples.categories, strict=True)
        )
        and np.array_equal(np.sort(model.rows_), np.flatnonzero(arrays["kept"]))
        and (neighbors is None or (isinstance(neighbors, int) and neighbors >= 1))
        and not (one_output and examples.target.shape[1] != 1)
        and (classes is None or classes.shape == (examples.target.shape[1],))
        and model.degree in (0, 1)
    )
    if not sound:
        _refuse(path, "its values do not fit each other")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ValueError(f"{str(path)!r} is no model that qkv saved: {reason}")
