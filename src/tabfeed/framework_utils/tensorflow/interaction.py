"""Products of feature vectors: `DotProductInteraction` (DLRM, FiBiNET) and the layer of xDeepFM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tabfeed.errors import ArgumentError

__all__ = ["DotProductInteraction", "XDeepFmOuterProduct"]

INTERACTIONS = (None, "field_all", "field_each", "field_interaction")
Tensor = Any
Shape = tuple[int | None, ...]


def _fields(shape: Sequence[int | None], what: str) -> tuple[int, int]:
    """Vectors in a row and numbers in a vector."""
    if len(shape) != 3 or shape[1] is None or shape[2] is None:
        raise ArgumentError(
            f"{what} takes (rows, features, dimension), with both of the last known; it got "
            f"{tuple(shape)}. DenseFeatures(..., aggregation='stack') makes such tensors"
        )
    return int(shape[1]), int(shape[2])


def _hidden(inputs: Tensor, mask: Tensor) -> Tensor:
    """The inputs, with the vectors a mask hides made zero."""
    if mask is None:
        return inputs
    return inputs * ops.expand_dims(ops.cast(mask, inputs.dtype), -1)


@keras.saving.register_keras_serializable(package="tabfeed")
class DotProductInteraction(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """The dot product of each pair of vectors: ``(N, F, D)`` to ``(N, F (F - 1) / 2)``.

    Pairs come in the order ``(0, 1), (0, 2), ..., (1, 2), ...``. A mask ``(N, F)`` hides vectors:
    their products are 0.

    Parameters
    ----------
    interaction_type
        None: ``v_i . v_j``. Otherwise ``(v_i W) . v_j`` with a learned ``(D, D)`` matrix:
        ``"field_all"`` has one for all, ``"field_each"`` one for each ``i``,
        ``"field_interaction"`` one for each pair.
    self_interaction
        Whether ``(0, 0), (1, 1), ...`` are pairs as well: ``F (F + 1) / 2`` of them.
    kernel_initializer
        What fills the matrices; by default a normal distribution of deviation ``1 / sqrt(D)``.

    Examples
    --------
    >>> DotProductInteraction()(ops.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])).shape[1]
    3
    >>> DotProductInteraction(self_interaction=True).compute_output_shape((8, 3, 2))
    (8, 6)
    """

    def __init__(
        self,
        interaction_type: str | None = None,
        self_interaction: bool = False,
        *,
        kernel_initializer: Any = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(trainable=trainable, name=name, dtype=dtype)
        if interaction_type not in INTERACTIONS:
            raise ArgumentError(
                f"interaction_type is {interaction_type!r}; it must be None, 'field_all', "
                "'field_each' or 'field_interaction'"
            )
        self.interaction_type = interaction_type
        self.self_interaction = bool(self_interaction)
        self.kernel_initializer = kernel_initializer
        self.supports_masking = True

    def _pairs(self, fields: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        return np.triu_indices(fields, 0 if self.self_interaction else 1)

    def build(self, input_shape: Shape) -> None:
        """Make the matrices."""
        fields, size = _fields(input_shape, self.name)
        number = {
            None: 0,
            "field_all": 1,
            "field_each": fields if self.self_interaction else fields - 1,
            "field_interaction": len(self._pairs(fields)[0]),
        }[self.interaction_type]
        if number:
            initializer = self.kernel_initializer or keras.initializers.RandomNormal(
                stddev=size**-0.5
            )
            self.kernel = self.add_weight(
                name="kernel",
                shape=(size, size) if number == 1 else (number, size, size),
                initializer=initializer,
            )
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor = None) -> Tensor:
        """The products."""
        vectors = _hidden(inputs, mask)
        left, right = self._pairs(int(inputs.shape[1]))
        if self.interaction_type == "field_interaction":
            kernel = ops.reshape(self.kernel, (len(left), *self.kernel.shape[-2:]))
            moved = ops.einsum("npd,pde->npe", ops.take(vectors, left, axis=1), kernel)
            return ops.sum(moved * ops.take(vectors, right, axis=1), axis=-1)
        products = ops.matmul(self._moved(vectors), ops.transpose(vectors, (0, 2, 1)))
        fields = int(inputs.shape[1])
        flat = ops.reshape(products, (-1, int(products.shape[1]) * fields))
        return ops.take(flat, left * fields + right, axis=1)

    def _moved(self, vectors: Tensor) -> Tensor:
        """Each vector times its matrix, as far as it is ever on the left."""
        if self.interaction_type is None:
            return vectors
        if self.interaction_type == "field_all":
            return ops.matmul(vectors, self.kernel)
        kernel = self.kernel if len(self.kernel.shape) == 3 else ops.expand_dims(self.kernel, 0)
        return ops.einsum("nfd,fde->nfe", vectors[:, : kernel.shape[0]], kernel)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """Products are not hidden; those of hidden vectors are 0."""
        return None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """One number a pair."""
        fields, _ = _fields(input_shape, self.name)
        return (input_shape[0], len(self._pairs(fields)[0]))

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            **super().get_config(),
            "interaction_type": self.interaction_type,
            "self_interaction": self.self_interaction,
            "kernel_initializer": _serialized(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="tabfeed")
class XDeepFmOuterProduct(keras.layers.Layer):  # type: ignore[misc,unused-ignore]
    """One step of xDeepFM's compressed interaction network.

    ``out[h] = sum over i, j of W[h, i, j] * xk[i] * x0[j]``, elementwise along the dimension: from
    ``(N, F, D)`` and ``(N, H, D)`` to ``(N, dim, D)``. A mask ``(N, F)`` hides vectors.

    Parameters
    ----------
    dim
        How many vectors come out.
    kernel_initializer
        What fills ``W``; by default a normal distribution of deviation ``1 / sqrt(F H)``.

    Examples
    --------
    Give the stacked features and the result of the step before; for the first step the features
    alone.

    >>> x0 = ops.ones((2, 3, 4))
    >>> x1 = XDeepFmOuterProduct(5)(x0)
    >>> tuple(XDeepFmOuterProduct(6)([x0, x1]).shape)
    (2, 6, 4)
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel_initializer: Any = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(trainable=trainable, name=name, dtype=dtype)
        if int(dim) != dim or dim < 1:
            raise ArgumentError(f"dim is {dim!r}; it must be a positive integer")
        self.dim = int(dim)
        self.kernel_initializer = kernel_initializer
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        """Make ``W``."""
        first, second = _both(input_shape)
        fields, size = _fields(first, self.name)
        hidden, other = _fields(second, self.name)
        if size != other:
            raise ArgumentError(
                f"{self.name} got vectors of {size} and of {other} numbers; both must have as many"
            )
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.dim, hidden, fields),
            initializer=self.kernel_initializer
            or keras.initializers.RandomNormal(stddev=(fields * hidden) ** -0.5),
        )
        self.built = True

    def call(self, inputs: Any, mask: Any = None) -> Tensor:
        """The products, weighted and summed."""
        if isinstance(inputs, tuple | list):
            masks = mask if isinstance(mask, tuple | list) else (mask, mask)
            x0, xk = (_hidden(x, m) for x, m in zip(inputs, masks, strict=True))
        else:
            x0 = xk = _hidden(inputs, mask)
        weighted = ops.einsum("hij,njd->nhid", self.kernel, x0)
        return ops.einsum("nhid,nid->nhd", weighted, xk)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        """The vectors that come out are none of those that went in."""
        return None

    def compute_output_shape(self, input_shape: Any) -> Shape:
        """`dim` vectors a row."""
        first, _ = _both(input_shape)
        return (first[0], self.dim, first[2])

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {
            **super().get_config(),
            "dim": self.dim,
            "kernel_initializer": _serialized(self.kernel_initializer),
        }


def _both(input_shape: Any) -> tuple[Any, Any]:
    """The shapes of x0 and xk."""
    if input_shape and isinstance(input_shape[0], tuple | list):
        first, second = input_shape
        return first, second
    return input_shape, input_shape


def _serialized(initializer: Any) -> Any:
    """An initializer as plain values; None stays None."""
    return initializer and keras.initializers.serialize(keras.initializers.get(initializer))
