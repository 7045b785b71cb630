"""What reading and writing must know of an executor whose work is done on other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from tabfeed.execute import Executor

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["is_remote", "require_files", "task_memory"]


def is_remote(executor: Executor) -> TypeGuard[Any]:
    """Whether the work may be done where this process's files and memory are not."""
    return bool(getattr(executor, "remote", False))


def task_memory(executor: Executor) -> int | None:
    """Bytes one task may use there; None where this machine's memory counts."""
    memory: int | None = executor.task_memory if is_remote(executor) else None
    return memory


def require_files(executor: Executor, dataset: Dataset) -> None:
    """Refuse to start if the data lies where the workers do not see it."""
    if is_remote(executor):
        found = (getattr(file, "location", None) for file in dataset._files.files)
        executor.require_files([location for location in found if location is not None])
