"""Names of a model's variables."""

from types import SimpleNamespace

from stratagem.keras.trainable import unique_paths


def test_paths_that_several_variables_share_get_numbers() -> None:
    variables = [SimpleNamespace(path=path) for path in ("a/kernel", "b", "a/kernel")]
    assert unique_paths(variables) == ["a/kernel#1", "b", "a/kernel#2"]
