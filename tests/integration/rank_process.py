"""The ranks of a training job, a process each, without a framework.

``python rank_process.py WORLD SOURCE LOG BATCH STEPS [OPTIONS]`` forks a process a rank, which is
quicker than starting as many interpreters, and ends well if all of them do. Each finds its rank
and world size in the environment, as under torchrun, writes its process id to ``LOG.pid.RANK``,
and notes in ``LOG.RANK`` each batch and where it then stood; the last line may be cut by a kill,
the others are whole. STEPS is 0 for one epoch, of which only the sizes of batches are noted, and -1
for ever. A state to begin with lies in ``LOG.state``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path

from tabfeed import Dataset
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.state import LoaderState


def keys(chunk: Chunk) -> list[list[int]]:
    """The batches of a chunk."""
    column = chunk.columns["key"].tolist()
    return [column[a:b] for a, b in pairwise(chunk.bounds.tolist())]


def pipeline_of(
    source: str, batch: int, storage_options: dict[str, object]
) -> LoaderState[list[int]]:
    """Batches of keys, beside all the other columns."""
    dataset = Dataset(source, storage_options=storage_options)
    layout = dict_layout(dataset.schema, dataset.column_names)
    options = LoaderOptions(batch_size=batch, shuffle=True, threads=1)
    return build_pipeline(dataset, layout, options, keys, Steps()).start()


def train(source: str, log: str, batch: str, steps: str, options: str = "{}") -> None:
    """What each rank does."""
    left, rank = int(steps), os.environ["RANK"]
    Path(f"{log}.pid.{rank}").write_text(str(os.getpid()))
    storage = json.loads(options)  # for all ranks, or a list of one for each
    feed = pipeline_of(
        source, int(batch), storage[int(rank)] if isinstance(storage, list) else storage
    )
    if os.path.exists(f"{log}.state"):
        feed.load_state_dict(json.loads(Path(f"{log}.state").read_text()))
    with open(f"{log}.{rank}", "a") as out:
        while left:
            for rows in feed:
                out.write(json.dumps({"keys": rows, "state": feed.state_dict()}) + "\n")
                out.flush()
                left -= 1
                if left == 0:
                    break
                time.sleep(0.01)
        if steps == "0":
            out.writelines(f'{{"rows": {len(rows)}}}\n' for rows in feed)


def main(world: int, *arguments: str) -> int:
    """Fork the ranks and wait for them; how many failed."""
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
            try:
                train(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
