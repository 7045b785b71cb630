# %% [markdown]
"""Moving from NVTabular: a program before and after, and every name with what became of it.

Most programs run when the one word ``nvtabular`` is changed to ``tabfeed``. This example does that
to one, shows the difference, and runs the result. Then it goes through the public names of
NVTabular 23.08, looks each up, and says which arguments are no longer taken. What differs in
behaviour is in ``docs/migration.md``.

    python examples/from_nvtabular.py
    python examples/from_nvtabular.py --data criteo/raw
"""

# %%
from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow: say errors alone
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

from nvtabular_names import ELSEWHERE, GONE, SAME, WITHOUT
from rich.console import Console
from rich.syntax import Syntax
from showing import arguments, fresh, table

from tabfeed import datagen
from tabfeed.display import progress
from tabfeed.errors import MissingExtraError

# %% [markdown]
# The program, as it was.

# %%
BEFORE = """\
import glob
import sys

import nvtabular as nvt
from nvtabular import ops
from nvtabular.loader.torch import DLDataLoader, TorchAsyncItr

raw, out = sys.argv[1:]
CATS = ["C" + str(i) for i in range(1, 27)]
CONTS = ["I" + str(i) for i in range(1, 14)]

cats = CATS >> ops.Categorify(freq_threshold=3, out_path=out, cat_cache="host")
conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
workflow = nvt.Workflow(cats + conts + ["label"])

train = nvt.Dataset(sorted(glob.glob(raw + "/*.parquet")), engine="parquet", part_size="64MB")
workflow.fit(train)
workflow.transform(train).to_parquet(out + "/train", shuffle=nvt.io.Shuffle.PER_PARTITION)
workflow.save(out + "/workflow")

sizes = ops.get_embedding_sizes(nvt.Workflow.load(out + "/workflow"))
files = sorted(glob.glob(out + "/train/*.parquet"))
batches = TorchAsyncItr(
    nvt.Dataset(files, engine="parquet"),
    cats=CATS, conts=CONTS, labels=["label"], batch_size=4096, shuffle=True,
)
loader = DLDataLoader(batches, batch_size=None, collate_fn=lambda x: x, num_workers=0)
rows = sum(len(y) for x_cat, x_cont, y in loader)
print(rows, "rows in", len(loader), "batches; C1 has", sizes["C1"][0], "ids")
"""


def run_after(raw: Path, folder: Path) -> None:
    """Change the word, show what changed, run it."""
    after = BEFORE.replace("nvtabular", "tabfeed")
    path = folder / "after.py"
    path.write_text(after)
    changed = difflib.unified_diff(BEFORE.splitlines(), after.splitlines(), "before", "after", n=0)
    shown = "\n".join(line for line in changed if not line.startswith("@@"))
    Console(width=100).print(Syntax(shown, "diff", theme="ansi_dark"))
    kept, sys.argv = sys.argv, ["after.py", str(raw), str(folder)]
    try:
        start = time.perf_counter()
        runpy.run_path(str(path))
        print(f"It ran, in {time.perf_counter() - start:.1f} s, on {raw}.")
    finally:
        sys.argv = kept


# %% [markdown]
# Looking a name up: the longest part that can be imported is a module, the rest are attributes.


# %%
def find(name: str) -> Any:
    """What a full name means; an AttributeError where it means nothing."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as e:
            if not name.startswith(e.name or "?"):
                raise  # it is there, but needs something that is not
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def missing_arguments(name: str, took: str) -> list[str]:
    """Those of the arguments it took that it does not take any more."""
    found = find(f"tabfeed.{name}")
    taken = inspect.signature(found).parameters if callable(found) and took else {}
    return [a for a in took.split() if a not in taken]


def is_attribute_of_instances(name: str) -> bool:
    """Whether it is set when an object is made, which its class does not show."""
    return name == "Workflow.output_node"


# %%
def look_up(bar: Any) -> tuple[list[tuple[str, str, str]], list[str]]:
    """A row for each name, and what should be there but is not."""
    rows, wrong = [], []
    for module, names in SAME.items():
        for name, took in names.items():
            path = f"{module}.{name}".lstrip(".")
            bar.advance()
            try:
                gone = [] if is_attribute_of_instances(path) else missing_arguments(path, took)
            except MissingExtraError as e:
                rows.append((f"nvtabular.{path}", f"tabfeed.{path}", f"not looked up: {e}"))
                continue
            except AttributeError:
                wrong.append(f"tabfeed.{path}")
                continue
            known = WITHOUT.get(path, {})
            wrong += [f"{a}= of tabfeed.{path}" for a in gone if a not in known]
            told = "; ".join(f"{a}: {known[a]}" for a in gone if a in known)
            rows.append((f"nvtabular.{path}", f"tabfeed.{path}", told))
    for old, new in ELSEWHERE.items():
        bar.advance()
        try:
            find(new)
        except MissingExtraError:
            continue
        except AttributeError:
            wrong.append(new)
        rows.append((old, new, ""))
    return rows, wrong


def main() -> None:
    """Run the program, look up the names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder of raw Parquet files like Criteo's")
    parser.add_argument("--rows", type=int, default=50_000, help="how many to make without --data")
    parser.add_argument("--folder", type=Path, default=Path("demo_data/from_nvtabular"))
    args = arguments(parser)
    fresh(args.folder)
    raw = args.data or args.folder / "raw"
    if args.data is None:
        datagen.criteo(raw, args.rows, raw=True)
    run_after(raw, args.folder)
    total = sum(len(names) for names in SAME.values()) + len(ELSEWHERE)
    with progress("names", total, unit="names") as bar:
        rows, wrong = look_up(bar)
    gone = [(old, "-", instead) for old, instead in GONE.items()]
    table("Every name", ("NVTabular", "tabfeed", "remarks"), rows + gone, text=3)
    same = sum(old.replace("nvtabular", "tabfeed") == new for old, new, _ in rows)
    print(f"{same} names by the one word, {len(rows) - same} elsewhere, {len(gone)} gone.")
    if wrong:
        raise SystemExit(f"These should be there and are not: {', '.join(wrong)}")


# %%
if __name__ == "__main__":
    main()
