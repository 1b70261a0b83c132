import stratagem as sg

sg.configure(virtual_devices=2)  # two devices out of one CPU; with GPUs: sg.configure()
import keras  # noqa: E402  computes with JAX, which sg.configure has chosen for it

strategy = sg.MirroredStrategy()  # or any other: nothing below changes
digits = sg.data.load_digits()
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
model.fit(digits.train_images, digits.train_labels, batch_size=64, epochs=10, verbose=2)
