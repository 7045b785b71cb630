"""Keras on several devices: its distribution API on JAX, a strategy of TensorFlow's on TensorFlow.

    data=$(python examples/small_clicks.py)
    python examples/keras_distribution.py --data $data --backend jax
    python examples/keras_distribution.py --data $data --backend tensorflow

Here the devices are parts of the CPU. On JAX ``keras.distribution.DataParallel`` splits each batch
over them as it comes; on TensorFlow, where Keras leaves that to `tf.distribute`, a MirroredStrategy
splits the batches of the loader's `tf.data` form. One process feeds all its devices, so the loader
is an ordinary one; batches must divide evenly, hence ``drop_last``.
"""

from __future__ import annotations

import os
from typing import Any

from small_clicks import ITEMS, options, tell


def make_model(keras: Any) -> Any:
    """An embedding and a line."""
    item = keras.Input((1,), dtype="int32", name="item")
    price = keras.Input((1,), name="price")
    found = keras.layers.Flatten()(keras.layers.Embedding(ITEMS, 8)(item))
    joined = keras.layers.Concatenate()([found, price])
    model = keras.Model({"item": item, "price": price}, keras.layers.Dense(1)(joined))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss)
    return model


def on_jax(given: Any) -> tuple[Any, Any, int]:
    """The model and its data over JAX's devices."""
    import jax

    jax.config.update("jax_platforms", "cpu")  # on a machine with GPUs too
    jax.config.update("jax_num_cpu_devices", given.devices)
    import keras

    from tabfeed.loader.keras import KerasSequenceLoader

    keras.utils.set_random_seed(0)
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    names = {"label_names": ["click"], "cat_names": ["item"], "cont_names": ["price"]}
    loader = KerasSequenceLoader(given.data, given.batch, drop_last=True, **names)
    return make_model(keras), loader, len(jax.devices())


def on_tensorflow(given: Any) -> tuple[Any, Any, int]:
    """The model and its data over parts of the CPU."""
    import tensorflow as tf

    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(given.devices)]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
    import keras

    from tabfeed.loader.tensorflow import KerasSequenceLoader

    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(given.devices)])
    names = {"label_names": ["click"], "cat_names": ["item"], "cont_names": ["price"]}
    loader = KerasSequenceLoader(given.data, given.batch, drop_last=True, **names)
    with strategy.scope():
        model = make_model(keras)
    return model, loader.as_tf_dataset(), strategy.num_replicas_in_sync


def main() -> None:
    """Train."""
    parser = options("Keras on several devices")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--backend", choices=["jax", "tensorflow"], default="jax")
    given = parser.parse_args()
    os.environ["KERAS_BACKEND"] = given.backend  # read when Keras is first imported
    make = {"jax": on_jax, "tensorflow": on_tensorflow}[given.backend]
    model, batches, devices = make(given)
    losses = model.fit(batches, epochs=given.epochs, verbose=0).history["loss"]
    tell(kind=f"Keras on {given.backend}", devices=devices, first=losses[0], last=losses[-1])


if __name__ == "__main__":
    main()
