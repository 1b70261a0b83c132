"""MobileNetV2 from keras.applications on several workers in step, with random weights and small made-up images.

    stratagem run --workers 2 examples/keras_mobilenet.py [--steps 20]

Swap the images for your own data set: any NumPy arrays, tf.data, PyDataset or generator that gives the same batches on
every worker.
"""

import argparse

import keras
import numpy as np

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--batch_size", type=int, default=16, help="of all workers together")
parser.add_argument("--size", type=int, default=64, help="of the images, in pixels")
parser.add_argument("--alpha", type=float, default=0.5, help="the width of the network")
options = parser.parse_args()

random = np.random.default_rng(0)
labels = random.integers(4, size=options.steps * options.batch_size)
# Four classes that differ in colour and brightness, under noise.
images = random.normal(size=(len(labels), options.size, options.size, 3)).astype(np.float32) * 0.3
images += np.stack([labels % 2, labels // 2, np.ones_like(labels)], axis=1)[:, None, None, :]

strategy = sg.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.applications.MobileNetV2(
        input_shape=(options.size, options.size, 3), alpha=options.alpha, weights=None, classes=4
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

history = model.fit(images, labels, batch_size=options.batch_size, epochs=1, verbose=2).history
print(f"loss {history['loss'][-1]:.3f}, accuracy {history['accuracy'][-1]:.3f}")
strategy.close()
