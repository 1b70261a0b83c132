"""The classic multi-worker tutorial: a small convolutional network, one process per worker, all in step.

    stratagem run --workers 2 examples/keras_multi_worker.py [--epochs 8]

Every worker runs this script. `fit` trains on the same global batches as one device would; the chief alone shows
progress and writes checkpoints, and a job started again with --max-restarts goes on from its backup.
"""

import argparse
import tempfile
from pathlib import Path

import keras

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch_size", type=int, default=64, help="of all workers together")
parser.add_argument("--backup_dir", default=str(Path(tempfile.gettempdir()) / "keras_multi_worker"))
options = parser.parse_args()

strategy = sg.MultiWorkerMirroredStrategy()
digits = sg.data.load_digits()
train_images = digits.train_images.reshape(-1, 8, 8, 1)
test_images = digits.test_images.reshape(-1, 8, 8, 1)

with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

model.fit(
    train_images,
    digits.train_labels,
    batch_size=options.batch_size,
    epochs=options.epochs,
    validation_data=(test_images, digits.test_labels),
    callbacks=[keras.callbacks.BackupAndRestore(options.backup_dir)],
    verbose=2,
)
loss, accuracy = model.evaluate(test_images, digits.test_labels, verbose=0)
print(f"accuracy on {len(test_images)} test digits: {accuracy:.3f}")  # the same on every worker
strategy.close()
