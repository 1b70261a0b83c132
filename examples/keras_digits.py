import stratagem as sg

sg.configure(virtual_devices=2)  # or the GPUs that are there
import keras  # noqa: E402  with KERAS_BACKEND=jax

digits = sg.data.load_digits()
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
model.fit(digits.train_images[:1408], digits.train_labels[:1408], batch_size=64, epochs=10, verbose=2)
