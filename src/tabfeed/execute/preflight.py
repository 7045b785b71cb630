"""What a run finds on the other side, looked at before it starts.

Each worker is asked once: has it tabfeed, the same as here; the same Dask; can it see the files;
can it write into the folder. A run that would fail on the first task fails here, with words.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from tabfeed.errors import ClusterError
from tabfeed.execute import dask_tasks

__all__ = ["Preflight"]

_SAMPLE = 16  # files looked for on each worker
_OWN_VERSION = "__import__('tabfeed').__version__"


class Preflight:
    """The scheduler and the workers of a client, and what is known of them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._sound: set[str] = set()
        self.threads = 1

    def workers(self) -> dict[str, dict[str, Any]]:
        """What the scheduler says of each worker."""
        found: dict[str, dict[str, Any]] = self._client.scheduler_info(n_workers=-1)["workers"]
        return found

    def count_workers(self) -> int:
        """How many there are; 0 if nobody answers."""
        try:
            return len(self.workers())
        except (OSError, TimeoutError, AttributeError, KeyError):  # reconnecting
            return 0

    def task_memory(self) -> int | None:
        """Half of the smallest share of memory that a worker has for each of its threads."""
        shares = [
            w["memory_limit"] // max(1, w["nthreads"])
            for w in self.workers().values()
            if w.get("memory_limit")
        ]
        return min(shares) // 2 if shares else None

    # -- versions -----------------------------------------------------------------

    def check(self, patience: float) -> None:
        """Look at workers not seen before."""
        there = self.workers()
        if not there:
            there = self._wait(patience)
        self.threads = sum(w["nthreads"] for w in there.values())
        new = [address for address in there if address not in self._sound]
        if new:
            self._check_dask()
            self._check_tabfeed(new)
            self._sound.update(new)

    def _wait(self, patience: float) -> dict[str, dict[str, Any]]:
        try:
            self._client.wait_for_workers(1, timeout=patience)
        except TimeoutError as e:
            raise ClusterError(
                f"the cluster has no workers, and none came within {patience:.0f} s: "
                f"{self._client!r}"
            ) from e
        return self.workers()

    def _check_dask(self) -> None:
        versions = self._client.get_versions(check=False)
        mine = versions["client"]
        others = {"the scheduler": versions["scheduler"], **versions["workers"]}
        for who, theirs in others.items():
            if theirs is None:
                continue
            for what, here, there in _differences(mine, theirs):
                raise ClusterError(
                    f"{who} runs {what} {there} and this process {here}; install the same "
                    "everywhere: tasks of one are not understood by the other"
                )

    def _check_tabfeed(self, workers: list[str]) -> None:
        """Ask for the version by way of a builtin, which a worker without tabfeed has too."""
        found = self._client.run(eval, _OWN_VERSION, workers=workers, on_error="return")
        try:
            found["the scheduler"] = self._client.run_on_scheduler(eval, _OWN_VERSION)
        except ImportError as e:
            found["the scheduler"] = e
        mine = sys.modules["tabfeed"].__version__
        for who, version in found.items():
            if isinstance(version, Exception) and not isinstance(version, ImportError):
                continue  # it died meanwhile
            if isinstance(version, ImportError):
                raise ClusterError(
                    f"{_who(who)} has no tabfeed ({version}); install tabfeed {mine} there, as here"
                )
            if version != mine:
                raise ClusterError(
                    f"{_who(who)} has tabfeed {version} and this process {mine}; install the same"
                )

    # -- files --------------------------------------------------------------------

    def require_files(self, files: Sequence[Any]) -> None:
        """Each worker sees these files, in the size they have here; of many, some are tried."""
        step = max(1, len(files) // _SAMPLE)
        asked = [(f.name, f.filesystem, f.path, f.size) for f in [*files[::step], *files[-1:]]]
        if not asked:
            return
        for who, missing in self._ask(dask_tasks.find_missing, asked):
            raise ClusterError(
                f"{_who(who)} cannot see {missing}; put the data where every worker reads it under "
                "the same name: a shared filesystem or an object store"
            )

    def require_folder(self, place: Any) -> None:
        """Each worker can write into this folder."""
        word = f"_tabfeed_{uuid.uuid4().hex}"
        with place.filesystem.open_output_stream(f"{place.path}/{word}") as sink:
            sink.write(b"x")
        try:
            for who, reason in self._ask(dask_tasks.see_folder, place.filesystem, place.path, word):
                raise ClusterError(
                    f"{_who(who)} cannot write into {place.name}: {reason}; choose a folder that "
                    "every worker and this process share, on a shared filesystem or an object store"
                )
        finally:
            place.filesystem.delete_file(f"{place.path}/{word}")

    def _ask(self, question: Any, *args: Any) -> Iterable[tuple[str, Any]]:
        """What workers object; those that die meanwhile object to nothing."""
        answers = self._client.run(question, *args, on_error="return")
        return [(who, answer) for who, answer in answers.items() if isinstance(answer, str)]


def _differences(mine: dict[str, Any], theirs: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """What differs that matters: Dask, and Python but for its last number."""
    for what in ("dask", "distributed"):
        here, there = mine["packages"].get(what), theirs["packages"].get(what)
        if here != there:
            yield what, str(here), str(there)
    here, there = (str(v["host"]["python"]).split(".") for v in (mine, theirs))
    if here[:2] != there[:2]:
        yield "Python", ".".join(here[:2]), ".".join(there[:2])


def _who(address: str) -> str:
    return address if address.startswith("the ") else f"worker {address}"
