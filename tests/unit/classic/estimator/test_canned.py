"""Models that need no model function."""

from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import stratagem as sg
from unit.classic.estimator import models

NAMED = {"left": models.X[:, 0], "right": models.X[:, 1:], "other": np.zeros(40)}
NOT_GIVEN: Any = None
QUIET = sg.RunConfig(log_step_count_steps=None, save_summary_steps=None)


def test_linear_regressor_finds_the_line(tmp_path: Path) -> None:
    batch = ({**NAMED, "unused": models.Y}, models.Y)
    regressor = sg.LinearRegressor(["left", "right"], tmp_path, optimizer=optax.sgd(0.2), config=QUIET)
    found = regressor.train(lambda: [batch] * 200).evaluate(lambda: [batch])
    assert found["loss"] < 1e-4
    assert found["prediction/mean"] == pytest.approx(found["label/mean"], abs=1e-2)
    np.testing.assert_allclose(
        regressor.get_variable_value("linear/kernel")[:, 0], [1.0, -2.0, 0.5], atol=1e-2
    )
    predicted = [row["predictions"] for row in regressor.predict(lambda: [batch[0]])]
    np.testing.assert_allclose(np.array(predicted)[:, 0], models.Y, atol=5e-2)


def test_linear_regressor_takes_all_columns_or_an_array(tmp_path: Path) -> None:
    for name, features in {"named": NAMED, "plain": models.X}.items():
        labels = np.stack([models.Y, -models.Y], axis=1)
        regressor = sg.LinearRegressor(model_dir=tmp_path / name, label_dimension=2, config=QUIET)
        regressor.train(lambda batch=(features, labels): [batch])
        width = 4 if name == "named" else 3
        assert regressor.get_variable_value("linear/kernel").shape == (width, 2)


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "Ftrl", "RMSProp", "SGD"])
def test_an_optimizer_by_its_name_in_tensorflow(tmp_path: Path, name: str) -> None:
    batch = (models.X, models.Y)
    regressor = sg.LinearRegressor(model_dir=tmp_path / "line", optimizer=name, config=QUIET)
    regressor.train(lambda: [batch] * 60)
    assert regressor.evaluate(lambda: [batch])["loss"] < 0.05 * np.mean(models.Y**2)


def test_a_classifier_with_an_optimizer_by_name(tmp_path: Path) -> None:
    batch = (models.X, (models.Y > 0).astype(np.int64))
    classifier = sg.DNNClassifier([8], model_dir=tmp_path, optimizer="Adagrad", config=QUIET)
    assert classifier.train(lambda: [batch] * 60).evaluate(lambda: [batch])["accuracy"] > 0.8


def test_an_optimizer_of_an_unknown_name() -> None:
    for made in (lambda: sg.LinearRegressor(optimizer="SDG"), lambda: sg.DNNClassifier([4], optimizer="SDG")):
        with pytest.raises(
            sg.StrategyError, match="is 'SDG'; give one of Adagrad, Adam, Ftrl, RMSProp, SGD, or"
        ):
            made()


def test_classifier_learns(tmp_path: Path) -> None:
    batch = (models.X, (models.Y > 0).astype(np.int64)[:, None])
    classifier = sg.DNNClassifier(
        [16], model_dir=tmp_path, optimizer=optax.adam(0.02), dropout=0.2, config=QUIET
    )
    found = classifier.train(lambda: [batch] * 150).evaluate(lambda: [batch])
    assert found["accuracy"] > 0.9
    assert found == classifier.evaluate(lambda: [batch])  # nothing is dropped here
    rows = list(classifier.predict(lambda: [batch]))
    assert set(rows[0]) == {"logits", "probabilities", "class_ids"}
    assert rows[0]["probabilities"].sum() == pytest.approx(1)
    right = np.mean([row["class_ids"] == label for row, label in zip(rows, batch[1][:, 0], strict=True)])
    assert right == pytest.approx(found["accuracy"])


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: sg.DNNClassifier(NOT_GIVEN), "hidden_units is None; give a list of whole numbers"),
        (lambda: sg.DNNClassifier([4], n_classes=NOT_GIVEN), "n_classes is None; give .* of at least 2$"),
        (
            lambda: sg.LinearRegressor(label_dimension=NOT_GIVEN),
            "label_dimension is None; give .* of at least 1$",
        ),
        (lambda: sg.DNNClassifier([0]), "each of hidden_units is 0"),
        (lambda: sg.DNNClassifier([4], n_classes=1), "n_classes is 1; give a whole number of at least 2"),
        (lambda: sg.DNNClassifier([4], dropout=1), "dropout is 1"),
        (lambda: sg.LinearRegressor("rooms"), "feature_columns is 'rooms'; give names"),
    ],
)
def test_arguments_that_cannot_be_meant(made: Any, told: str) -> None:
    with pytest.raises(sg.StrategyError, match=told):
        made()


@pytest.mark.parametrize(
    ("columns", "batch", "told"),
    [
        (["rooms"], (NAMED, models.Y), "no feature 'rooms'; the batches have left, other, right"),
        (["rooms"], (models.X, models.Y), "the features have no names"),
        (None, (models.X, None), "the labels are missing; give one array"),
    ],
)
def test_batches_that_do_not_fit(tmp_path: Path, columns: Any, batch: Any, told: str) -> None:
    with pytest.raises(sg.DataError, match=told):
        sg.LinearRegressor(columns, tmp_path).train(lambda: [batch])


CLASSES = np.arange(40) % 2


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (
            CLASSES + 1,
            "20 of 40 labels are not classes, such as 2; n_classes is 2, so give whole numbers from 0 to 1",
        ),
        (CLASSES - 1, "such as -1"),
        (CLASSES / 2, "20 of 40 labels are not classes, such as 0.5"),
        (np.full(40, np.nan, np.float32), "40 of 40 labels are not classes, such as nan"),
        (
            np.eye(2)[CLASSES],
            r"the labels have the shape \(40, 2\); give .* 1 number\(s\) .* argmax\(axis=1\)",
        ),
        ({"label": CLASSES}, "the labels are a dict; give one array"),
    ],
)
def test_labels_that_are_no_classes(tmp_path: Path, labels: Any, told: str) -> None:
    classifier = sg.DNNClassifier([4], model_dir=tmp_path, config=QUIET)
    with pytest.raises(sg.DataError, match=told):
        classifier.train(lambda: [(models.X, labels)])


def test_labels_are_looked_at_in_every_batch(tmp_path: Path) -> None:
    right = (models.X, CLASSES.astype(np.float32))  # whole numbers, whatever their dtype
    wrong = (models.X, CLASSES + 5)
    classifier = sg.DNNClassifier([4], model_dir=tmp_path, config=QUIET).train(lambda: [right])
    for look in (classifier.train, classifier.evaluate):
        with pytest.raises(sg.DataError, match="40 of 40 labels are not classes, such as 5"):
            look(lambda: [right, wrong])
    assert len(list(classifier.predict(lambda: [right, wrong]))) == 80  # which looks at no label


@pytest.mark.parametrize(("dimension", "shape"), [(1, (40, 2)), (2, (40,)), (2, (40, 3))])
def test_labels_of_another_width(tmp_path: Path, dimension: int, shape: tuple[int, ...]) -> None:
    regressor = sg.LinearRegressor(model_dir=tmp_path, label_dimension=dimension)
    with pytest.raises(sg.DataError, match=rf"give an array with {dimension} number\(s\) for each row"):
        regressor.train(lambda: [(models.X, np.zeros(shape))])
