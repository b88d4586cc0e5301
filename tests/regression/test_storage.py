"""Models on disk, answers in batches, and pictures."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

import qkv
from qkv.regression import Nearest, batches

Regressor = qkv.NadarayaWatsonRegressor


def _table(n: int = 61) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "number": random.uniform(0, 1, n),
            "day": [dt.date(2024, 1, 1) + dt.timedelta(int(d)) for d in random.integers(0, 90, n)],
            "kind": random.choice(["a", "b"], n),
            "size": pd.Categorical(random.choice(["s", "m"], n), ["s", "m"], ordered=True),
        }
    )
    frame.loc[3, "number"] = np.nan
    return frame, random.standard_normal(n)


def _mixed_model():
    x, y = _table()
    weight = np.ones(61)
    weight[-2:], weight[0] = 0, 3
    model = Regressor(bandwidth=[0.3, 20.0], categorical="auto", smoothing=[0.2, 0.4])
    return model.fit(x, y, sample_weight=weight), x


def _wave(**options):
    x = np.random.default_rng(0).uniform(0, 4, (53, 1))
    return Regressor(**options).fit(x, np.sin(x[:, 0])), x


MODELS = [
    _mixed_model,
    lambda: _wave(bandwidth=0.3, degree=1),
    lambda: _wave(kernel=qkv.Tricube(), bandwidth=Nearest(5)),
    lambda: _wave(bandwidth=np.array([0.3]), empty="nearest"),
]


@pytest.mark.parametrize("make", MODELS)
def test_a_model_comes_back_as_it_was(make, tmp_path: Path) -> None:
    model, x = make()
    path = tmp_path / "model.safetensors"
    model.save(path)
    again = Regressor.load(path)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    np.testing.assert_array_equal(again.predict_interval(x), model.predict_interval(x))
    np.testing.assert_array_equal(again.weights(x), model.weights(x))
    assert again.loo_score() == model.loo_score()
    assert again.n_features_in_ == model.n_features_in_
    assert list(tmp_path.iterdir()) == [path]
    again.fit(x, np.arange(len(x)))  # its parameters are those of an estimator


@pytest.mark.parametrize("classes", [["no", "yes"], [3, 7], [False, True]])
def test_a_classifier_comes_back(classes, tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0, 1, (31, 2))
    y = np.array(classes)[(x[:, 0] > 0.5).astype(int)]
    model = qkv.NadarayaWatsonClassifier(bandwidth=0.2).fit(x, y)
    path = tmp_path / "model"
    model.save(path)
    again = qkv.NadarayaWatsonClassifier.load(path)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert again.classes_.dtype == model.classes_.dtype
    with pytest.raises(ValueError, match=r"is no model .*: it holds a NadarayaWatsonClassifier"):
        Regressor.load(path)


def _spoilt(path: Path, change) -> None:
    """The file at `path` with its arrays and facts changed."""
    from safetensors import safe_open

    arrays = load_file(path)
    with safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["qkv"])
    change(arrays, facts)
    save_file(arrays, path, metadata={"qkv": json.dumps(facts)})


def _set(part: str, value):
    def change(arrays, facts) -> None:
        arrays[part] = value(arrays[part])

    return change


def _say(name: str, value):
    def change(arrays, facts) -> None:
        facts[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_set("target", lambda a: a[:-1]), "shape .* which does not fit the others"),
        (_set("target", lambda a: a.astype(np.float32)), "target must be F64 with 2 axes"),
        (_set("target", lambda a: a * np.nan), "its values do not fit each other"),
        (_set("number", lambda a: a[::-1].copy()), "its values do not fit each other"),
        (_set("number", lambda a: a * np.inf), "its values do not fit each other"),
        (_set("bandwidth", lambda a: -a), "its values do not fit each other"),
        (_set("rows", lambda a: a + 10**12), "its values do not fit each other"),
        (_set("cv_curve", lambda a: np.zeros((0, 5))), "do not fit each other"),
        (lambda arrays, facts: arrays.pop("target"), "its arrays are"),
        (_say("version", 99), "its version is 99, this qkv reads 1"),
        (_say("format", "other"), "it does not say what it is"),
        (_say("numbers", []), "its values do not fit each other"),
        (_say("numbers", [[0, "x0", "years", None]]), "its values do not fit each other"),
        (_say("numbers", [0]), "its description does not fit"),
        (_say("neighbors", -4), "its values do not fit each other"),
        (_say("parameters", {"verbose": True}), "its description does not fit"),
        (_say("names", [[1, "kind", ["a"], False]]), "fit"),
    ],
)
def test_a_file_that_was_changed_is_refused(change, text, tmp_path: Path) -> None:
    model, _ = _wave(bandwidth=0.3)
    path = tmp_path / "model.safetensors"
    model.save(path)
    _spoilt(path, change)
    with pytest.raises(ValueError, match=f"is no model that qkv saved: .*{text}"):
        Regressor.load(path)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match="there is no file"):
        Regressor.load(path)
    path.write_bytes(b"\xff" * 99)
    with pytest.raises(ValueError, match="is no model that qkv saved"):
        Regressor.load(path)
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(ValueError, match="it does not say what it is"):
        Regressor.load(path)


def test_a_kernel_of_ones_own_cannot_be_saved(tmp_path: Path) -> None:
    class Cauchy(qkv.similarity.Kernel):
        def profile(self, squared):
            return 1 / (1 + squared)

    model, _ = _wave(kernel=Cauchy(), bandwidth=0.3)
    with pytest.raises(ValueError, match=r"kernels gaussian, .* can be saved; got Cauchy$"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_answers_in_batches(tmp_path: Path, monkeypatch) -> None:
    model, x = _mixed_model()
    rows = pa.Table.from_pandas(x.assign(id=np.arange(61), answer="taken"))
    rows = rows.select(["id", "size", "kind", "day", "number", "answer"])
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=17)
    monkeypatch.setattr(batches, "ROWS", 13)
    expected, bounds = model.predict(x), model.predict_interval(x, 0.8)
    sources = [
        tmp_path / "rows.parquet",
        str(tmp_path),
        rows,
        pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=11)),
    ]
    for source in sources:
        found = list(model.predict_batches(source, level=0.8))
        assert len(found) > 3
        whole = pa.Table.from_batches(found)
        assert whole.column_names == [*rows.column_names, "answer_", "low", "high"]
        assert whole["id"].to_pylist() == list(range(61))
        np.testing.assert_allclose(whole["answer_"].to_numpy(), expected, rtol=1e-12)
        np.testing.assert_allclose(whole["low"].to_numpy(), bounds[:, 0], rtol=1e-9)
        np.testing.assert_allclose(whole["high"].to_numpy(), bounds[:, 1], rtol=1e-9)


def test_batches_of_what_was_not_seen_in_fit(tmp_path: Path) -> None:
    model, _ = _mixed_model()
    with pytest.raises(ValueError, match="the rows must have the column 'number'; got a"):
        list(model.predict_batches(pa.table({"a": [1.0]})))
    with pytest.raises(ValueError, match="there is no file"):
        list(model.predict_batches(tmp_path / "none.parquet"))
    with pytest.raises(TypeError, match="source must be the path of a Parquet file or something"):
        list(model.predict_batches(7))
    plain, _ = _wave(bandwidth=0.3)
    both = Regressor(bandwidth=0.3).fit(np.ones((3, 1)), np.ones((3, 2)))
    (batch,) = both.predict_batches(pa.table({"x": [1.0, 2.0]}))
    assert batch["answer"].to_pylist() == [[1.0, 1.0], [1.0, 1.0]]
    (batch,) = plain.predict_batches(pa.table({"any": [1.0]}))
    assert batch["answer"].to_numpy() == pytest.approx(plain.predict([[1.0]]))


def test_a_picture_with_its_interval() -> None:
    model, x = _wave(bandwidth=0.3)
    (axes,) = model.plot(0.8).axes
    (curve,) = axes.lines
    np.testing.assert_allclose(curve.get_ydata(), model.predict(curve.get_xdata()[:, None]))
    low, high = model.predict_interval([[x.min()]], 0.8)[0]
    band = axes.collections[1].get_paths()[0].vertices
    assert np.isclose(band[:, 1], low).any()
    assert np.isclose(band[:, 1], high).any()
    assert "80%" in axes.get_legend_handles_labels()[1][1]
    days = pd.DataFrame({"day": pd.to_datetime(["2024-01-01", "2024-01-05", "2024-02-01"])})
    (axes,) = Regressor(bandwidth=3e6).fit(days, [1.0, 2.0, 4.0]).plot().axes
    assert axes.get_xlabel() == "day"
    assert axes.lines[0].get_xdata()[0] == np.datetime64("2024-01-01")
    mixed, _ = _mixed_model()
    with pytest.raises(ValueError, match="plot draws the answers of one column of numbers"):
        mixed.plot()
