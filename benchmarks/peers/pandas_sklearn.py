"""pandas and scikit-learn: the workflow of the README as a ColumnTransformer, all in memory.

`OrdinalEncoder` numbers categories by value, not by how often they come: less work than the others
do. It has no way of its own to order by frequency.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.contender import Case, Contender, Features


def features(case: Case) -> Features:
    """Fit on a frame, transform it, write Parquet."""
    import pandas as pd

    out = Path(case.scratch) / "out"

    def run() -> dict[str, float]:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        start = time.perf_counter()
        frame = pd.concat([pd.read_parquet(f) for f in case.files], ignore_index=True)
        transformer = _transformer(case).fit(frame)
        fitted = time.perf_counter()
        transformed = transformer.transform(frame)
        transformed.to_parquet(out / "part_0.parquet", compression="snappy")
        return {"fit_s": fitted - start, "transform_s": time.perf_counter() - fitted}

    return run


def _transformer(case: Case) -> Any:
    import numpy as np
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, StandardScaler

    cats = OrdinalEncoder(
        dtype=np.int64,
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-2,
        min_frequency=2,
    )
    logs = FunctionTransformer(lambda x: np.log1p(np.maximum(x, 0)), feature_names_out="one-to-one")
    conts = make_pipeline(SimpleImputer(strategy="constant", fill_value=0), logs, StandardScaler())
    out = ColumnTransformer(
        [
            ("cats", cats, list(case.cats)),
            ("conts", conts, list(case.conts)),
            ("label", "passthrough", list(case.labels)),
        ],
        verbose_feature_names_out=False,
    )
    return out.set_output(transform="pandas")


CONTENDERS = (
    Contender(
        name="sklearn-features",
        title="pandas and scikit-learn",
        open=features,
        suites=("features",),
        modules=("sklearn", "pandas", "sklearn.compose", "sklearn.preprocessing", "sklearn.impute"),
        most_rows=50_000,
        why="One thread, and all rows in memory; ids are by value, which spares counting.",
    ),
)
