"""The examples: the same for all, other than those tested on, and with something in them to learn."""

import itertools

import numpy as np

from stratagem.tools.bench.worker import Teacher, first_parameters


def test_all_who_ask_get_the_same_batches() -> None:
    batches = [list(itertools.islice(Teacher(20, 5).training(8), 3)) for _ in range(2)]
    for (one, labels), (other, same) in zip(*batches, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(labels, same)
    assert not np.array_equal(batches[0][0][0], batches[0][1][0])


def test_inputs_have_one_length_at_every_width() -> None:
    lengths = [np.mean(np.sum(Teacher(width, 3).examples(2000, 0)[0] ** 2, axis=1)) for width in (16, 784)]
    np.testing.assert_allclose(lengths, 64, rtol=0.25)


def test_a_linear_reader_learns_what_holds_for_unseen_examples() -> None:
    teacher = Teacher(50, 10)
    inputs, labels = teacher.examples(4000, seed=1)
    weights, *_ = np.linalg.lstsq(inputs, np.eye(10)[labels], rcond=None)
    unseen, truth = teacher.test()
    accuracy = np.mean((unseen @ weights).argmax(axis=1) == truth)
    most_frequent = np.bincount(truth).max() / len(truth)
    assert accuracy > most_frequent + 0.2


def test_parameters_follow_the_layers() -> None:
    assert [(matrix.shape, vector.shape) for matrix, vector in first_parameters((6, 4, 3))] == [
        ((6, 4), (4,)),
        ((4, 3), (3,)),
    ]
