"""What Keras sees of a loader: a dataset that gives any single batch, or whole epochs.

`keras.utils.PyDataset` is public, and alone it would do: Keras would ask for single batches, in an
order that ``fit(shuffle=True)``, the default, draws anew. Measured on two cores, 4 M rows in
batches of 65,536: batch by batch in order, an epoch took 1.2 to 1.35 times the processor time of
one given whole; in an order of Keras's own 13 times, since each batch is then gathered from
partitions that were not read ahead. Keras lets a "custom data adapter" give whole epochs instead,
but has no public name for that class. So it is taken from `keras.src`, and where a later Keras has
it elsewhere the loader is a `PyDataset` and no more.

Keras passes neither the model nor ``class_weight`` and ``sample_weight`` to an adapter. Weights
would be ignored silently, and several labels would be paired with outputs in the order of their
sorted names. Keras has no public way to these, so `_labels_by_name` reads them from the frame of
the running `fit`, `evaluate` or `predict`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras

from tabfeed.errors import ArgumentError, StateError
from tabfeed.loader.base_loader import BaseLoader
from tabfeed.loader.keras.fields import Array, Field, Roles
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.position import Position
from tabfeed.loader.state import EpochIterator, Mark

try:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    TAKES_EPOCHS = True
except ImportError:
    TAKES_EPOCHS = False

    class DataAdapter:  # type: ignore[no-redef]
        """Nothing: this Keras keeps its adapters elsewhere, and takes the loader as a dataset."""


__all__ = ["KerasBase"]


class KerasBase(BaseLoader, keras.utils.PyDataset, DataAdapter):  # type: ignore[misc,unused-ignore]
    """What Keras sees of a loader.

    Parameters
    ----------
    pipeline
        Gives the backend's tensors.
    raw
        Makes the arrays themselves instead, for epochs that TensorFlow runs: it takes them over
        without a copy.
    """

    fields: tuple[Field, ...]
    roles: Roles
    class_weight: Mapping[int, float] | None

    def __init__(self, pipeline: Pipeline[Any], raw: Stages[list[Array]]) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._raw = raw
        self._before = 0
        self._walk: tuple[int, EpochIterator[Any]] | None = None
        self._walk_lock = threading.RLock()
        self._asked: set[int] = set()  # by number, since an iterator or an epoch ended
        self._epochs_begun = 0  # epochs Keras has started
        self._looked_at: Mark | None = None  # where an epoch began of which it took some batches
        self._failure: BaseException | None = None
        self._early: tuple[Position, EpochIterator[list[Array]]] | None = None
        self._fit_datasets: dict[bool, Any] = {}  # by whether labels come by name

    # -- a sequence of batches ------------------------------------------------------

    def __iter__(self) -> EpochIterator[Any]:
        """The next epoch."""
        return self._begin(self.pipeline.stages)

    def _begin(self, stages: Stages[Any]) -> EpochIterator[Any]:
        self._end_early()
        with self._walk_lock:
            self._end_walk()  # it holds threads, and memory on a GPU, which the next iterator needs
            self._asked = set()
        self._before = self.state.rows_given
        return self.state.iterate(stages=stages)

    def _lazily(self) -> Iterator[Any]:
        """An epoch that begins with its first batch."""
        by_name = _labels_by_name(self, self.roles.labels)
        self._epochs_begun += 1
        batches = self._one_epoch(self._epochs_begun)
        return map(self._with_named_labels, batches) if by_name else batches

    def _with_named_labels(self, batch: Any) -> Any:
        x, labels, *weights = batch
        return (x, dict(zip(self.roles.labels, labels, strict=True)), *weights)

    def _one_epoch(self, number: int) -> Iterator[Any]:
        """Keras drops the iterator whose first batch a new model is built with.

        One that it has trained on is dropped for the next one, or when ``fit`` is over.
        """
        mark, batches = self.state.mark(), self._begin(self.pipeline.stages)
        try:
            yield from batches
        except GeneratorExit:
            left = batches.position.step < batches.position.steps
            self._looked_at = mark if left and number == self._epochs_begun else None
            raise

    def __getitem__(self, index: int) -> Any:
        """Batch `index` of the epoch that comes next; in order, batches are prepared ahead."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        index %= len(self)
        with self._walk_lock:
            if self._walk is None or self._walk[0] != index:
                self._end_walk()
                self._walk = (index, self.state.seek(index))
            iterator = self._walk[1]
            self._walk = (index + 1, iterator)
            self._asked.add(index)
            return next(iterator)

    def _end_walk(self) -> None:
        walk, self._walk = self._walk, None
        if walk is not None:
            walk[1].close()

    @property
    def num_rows_processed(self) -> int:
        """Rows given in the latest epoch."""
        return self.state.rows_given - self._before

    # -- what Keras reads of a dataset --------------------------------------------------

    @property
    def num_batches(self) -> int:
        """Batches in an epoch."""
        return len(self)

    @property
    def partial_batch_size(self) -> int | None:
        """Rows of the last batch, if it is a short one."""
        plan = self.state.upcoming.plan
        rows = plan.rank_rows(plan.steps - 1, *self.pipeline.options.shard)
        return None if rows == self.batch_size else rows

    @property
    def has_partial_batch(self) -> bool:
        """Whether the last batch is a short one."""
        return self.partial_batch_size is not None

    @property
    def use_multiprocessing(self) -> bool:
        """Always false: threads of the loader prepare batches."""
        return False

    @use_multiprocessing.setter
    def use_multiprocessing(self, value: bool) -> None:
        if value:
            raise ArgumentError(
                "batches are prepared by threads that copies of this loader in other processes "
                "would lack; leave use_multiprocessing off and give threads= for more of them"
            )

    def on_epoch_begin(self) -> None:
        """Forget what was only looked at: an epoch begins with its first batch."""
        self._looked_at = None

    def on_epoch_end(self) -> None:
        """Raise what ended the epoch early; go back, or on, as far as batches were taken.

        Back, if a model was just built with the first ones; on, if Keras took batches by
        number. Where Keras takes whole epochs, only all of them count: it just looks at a few.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        mark, self._looked_at = self._looked_at, None
        if mark is not None:
            self.state.go_back(mark)
        with self._walk_lock:
            self._end_walk()
            asked, self._asked = self._asked, set()
        if len(asked) >= (len(self) if TAKES_EPOCHS else 1):
            self.state.skip_epoch()

    def get_numpy_iterator(self) -> Iterator[Any]:
        """An epoch as NumPy arrays."""
        for batch in self._lazily():
            yield keras.tree.map_structure(keras.ops.convert_to_numpy, batch)

    def get_jax_iterator(self) -> Iterator[Any]:
        """An epoch as JAX arrays."""
        return self._lazily()

    def get_torch_dataloader(self) -> Iterator[Any]:
        """An epoch as torch tensors."""
        return self._lazily()

    def get_tf_dataset(self) -> Any:
        """Epochs as `tf.data`, for ``fit``: what ends one early is raised by `on_epoch_end`.

        The first begins now, while Keras builds what will take it. The dataset is made once: that
        takes as long as some hundred thousand rows, and ``evaluate`` asks after every epoch.
        """
        by_name = _labels_by_name(self, self.roles.labels)
        begun = self._begin(self._raw)
        self._early = (self.state.upcoming, begun)
        if by_name not in self._fit_datasets:
            fit_epoch = weakref.WeakMethod(self.fit_epoch)  # Keras holds the loader while it reads
            self._fit_datasets[by_name] = self._tf_dataset(
                lambda: fit_epoch()(),  # type: ignore[misc]
                by_name=by_name,
            )
        return self._fit_datasets[by_name]

    def as_tf_dataset(self, *, by_name: bool = False) -> Any:
        """A `tf.data.Dataset` of the batches; each iteration over it is an epoch of the loader.

        It composes (``map``, ``take``, ``prefetch``) and distributes: under `tf.distribute` on one
        machine each batch is shared over the replicas. With several machines give each process its
        `global_rank`; the dataset is not sharded again then.

        Call it after `load_state_dict`. The dataset of a loader that stands within an epoch has no
        length, since its first epoch is shorter than the next ones.

        Parameters
        ----------
        by_name
            Whether labels come as a dict by name. Use it for a model with several outputs that
            have the labels' names. Without it several labels are a tuple in the order of
            `label_names`, which Keras pairs with the outputs by position (with sorted names where
            they are a dict): labels in another order train the wrong outputs without an error.
        """
        whole = self.state.upcoming.step == 0

        def begin() -> EpochIterator[list[Array]]:
            if whole and self.state.upcoming.step:
                raise StateError(
                    "a state within an epoch was loaded after as_tf_dataset() was called; call "
                    "as_tf_dataset() again, since its next epoch has fewer batches"
                )
            return self._begin(self._raw)

        return self._tf_dataset(begin, by_name=by_name, steps=len(self) if whole else None)

    def _tf_dataset(
        self,
        batches: Callable[[], Iterator[list[Array]]],
        *,
        by_name: bool = False,
        steps: int | None = None,
    ) -> Any:
        from tabfeed.loader.keras.tf_data import Structure, make_dataset

        rows = None if self.has_partial_batch else self.batch_size
        labels = len(self.roles.labels)
        structure = Structure(self.fields, labels, self.class_weight, rows, by_name)
        own_shards = self.pipeline.options.shard.world > 1
        return make_dataset(structure, batches, own_shards=own_shards, steps=steps)

    def fit_epoch(self) -> Iterator[list[Array]]:
        """An epoch of ``fit``; what ends it early is kept for `on_epoch_end`."""
        try:
            yield from self._take_early() or self._begin(self._raw)
        except Exception as e:
            self._failure = e

    def _take_early(self) -> EpochIterator[list[Array]] | None:
        """The epoch that was begun ahead of Keras's request, if it is still the next one."""
        if self._early is not None and self._early[0] != self.state.upcoming:
            self._end_early()
        early, self._early = self._early, None
        return None if early is None else early[1]

    def _end_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            early[1].close()

    def close(self) -> None:
        """End the background threads of all iterators."""
        with self._walk_lock:
            self._end_walk()
        self._end_early()
        super().close()


# -- what Keras was called with ------------------------------------------------------------------

_METHODS = ("fit", "evaluate", "predict")
_dict_keys: MutableMapping[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _labels_by_name(loader: Any, labels: Sequence[str]) -> bool:
    """Whether the running `fit` or `evaluate` takes labels as a dict by name.

    Refuses arguments that Keras would ignore, and labels that no output is named for.
    """
    call = _running_call()
    if call is None or "y" not in call:  # predict takes no labels
        return False
    for prefix in ("", "val_"):
        if call.get(f"{prefix}x") is loader:
            _refuse_ignored(call, prefix)
    return len(labels) > 1 and _has_outputs_named(call["self"], loader, labels)


def _running_call() -> Mapping[str, Any] | None:
    """The arguments of the innermost `fit`, `evaluate` or `predict` of a model."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _METHODS:
            found = frame.f_locals
            if isinstance(found.get("self"), keras.Model):
                return dict(found)
        if frame.f_back is None:
            return None
        frame = frame.f_back


def _refuse_ignored(call: Mapping[str, Any], prefix: str) -> None:
    """Refuse what was given beside the loader; `prefix` is `val_` for validation data of `fit`."""
    if call.get(f"{prefix}y") is not None:
        raise ArgumentError(
            "y= does not reach a loader; give it the columns of the labels: "
            'KerasSequenceLoader(..., label_names=["click"])'
        )
    if not prefix and call.get("class_weight") is not None:
        raise ArgumentError(
            "fit(class_weight=...) does not reach a loader; give it to the loader: "
            "KerasSequenceLoader(..., class_weight={0: 1.0, 1: 5.0})"
        )
    if call.get(f"{prefix}sample_weight") is not None:
        raise ArgumentError(
            "sample_weight= does not reach a loader; give class_weight= to KerasSequenceLoader, or "
            "on TensorFlow add weights with loader.as_tf_dataset().map(...)"
        )


def _has_outputs_named(model: Any, loader: Any, labels: Sequence[str]) -> bool:
    """Whether each label is the name of an output.

    A model without a loss pairs labels and outputs in code of its own.
    """
    names = getattr(model, "output_names", None)
    if names is not None and not isinstance(model.output, dict):
        return set(labels) == set(names)
    if names is None and getattr(model, "loss", None) is None:
        return False
    keys = _keys_by_running(model, loader) if names is None else tuple(model.output)
    if keys and not set(labels) <= set(keys):
        raise ArgumentError(
            f"the model's outputs are {', '.join(keys)}, the loader's labels "
            f"{', '.join(labels)}; name outputs as the labels are, so that they can be paired"
        )
    return bool(keys)


def _keys_by_running(model: Any, loader: Any) -> tuple[str, ...]:
    """The keys of a model's outputs; none if they are no dict.

    Only a functional model knows its outputs before it runs, so others run once, on one batch.
    """
    if model not in _dict_keys:
        strategy = getattr(model, "distribute_strategy", None)  # variables belong to it
        with strategy.scope() if strategy else nullcontext():
            outputs = model(loader.peek()[0], training=False)
        _dict_keys[model] = tuple(outputs) if isinstance(outputs, dict) else ()
    return _dict_keys[model]
