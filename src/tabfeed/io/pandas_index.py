"""Which columns of a file are a pandas index.

pandas and Dask store the index of a frame as columns beside the others, and note in the schema's
metadata which they are. They number or name the rows; as features they would tell a model where a
row lay. So they are left out of a dataset unless they are asked for by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

__all__ = ["index_columns"]

_UNNAMED = re.compile(r"__index_level_\d+__|__null_dask_index__")


def index_columns(names: Iterable[str], metadata: Mapping[bytes, bytes] | None) -> tuple[str, ...]:
    """Those of the names that are an index; none if there would be no column left.

    Examples
    --------
    >>> index_columns(["x", "id"], {b"pandas": b'{"index_columns": ["id"]}'})
    ('id',)
    >>> index_columns(["x", "__index_level_0__"], None)
    ('__index_level_0__',)
    """
    noted = _noted((metadata or {}).get(b"pandas", b""))
    everything = list(names)
    found = tuple(n for n in everything if n in noted or _UNNAMED.fullmatch(n))
    return found if len(found) < len(everything) else ()


@lru_cache(maxsize=64)
def _noted(metadata: bytes) -> frozenset[str]:
    """What pandas' metadata name; an index that only counts the rows is described, not named."""
    try:
        columns = json.loads(metadata)["index_columns"]
        return frozenset(c for c in columns if isinstance(c, str))
    except (ValueError, TypeError, KeyError):  # there is none, or it is not pandas'
        return frozenset()
