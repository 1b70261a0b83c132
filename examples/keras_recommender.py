"""A recommender on parameter servers: tables of embeddings, cut by rows over the servers, trained by workers at their own pace.

    stratagem run --ps 2 --workers 2 examples/keras_recommender.py [--epochs 6]

Users like items that lie near them in a hidden space of two dimensions; the model finds that out from their ratings.
"""

import argparse

import keras
import numpy as np

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--users", type=int, default=500)
parser.add_argument("--items", type=int, default=300)
parser.add_argument("--ratings", type=int, default=20_000)
options = parser.parse_args()

random = np.random.default_rng(0)
tastes, traits = random.normal(size=(options.users, 2)), random.normal(size=(options.items, 2))
users = random.integers(options.users, size=options.ratings)
items = random.integers(options.items, size=options.ratings)
likes = ((tastes[users] * traits[items]).sum(axis=1) > 0).astype(np.float32)
split = options.ratings * 9 // 10

strategy = sg.ParameterServerStrategy(
    update=sg.Async(),
    partitioner=sg.MinSizeShards(min_bytes=4096, max_shards=2),  # tables are cut, small variables stay whole
)
with strategy.scope():
    user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int32", name="item")
    user_vector = keras.layers.Embedding(options.users, 8, name="users")(user)
    item_vector = keras.layers.Embedding(options.items, 8, name="items")(item)
    score = keras.layers.Dot(axes=1)([user_vector, item_vector])
    model = keras.Model([user, item], keras.layers.Dense(1)(score))
    model.compile(
        optimizer=keras.optimizers.Adam(0.02),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )

model.fit([users[:split], items[:split]], likes[:split], batch_size=256, epochs=options.epochs, verbose=2)
if strategy.is_chief:
    _, accuracy = model.evaluate([users[split:], items[split:]], likes[split:], verbose=0)
    print(f"accuracy on ratings never seen: {accuracy:.3f}")
strategy.close()
