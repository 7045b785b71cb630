"""Profile a script that does not use the profiler itself.

The iterators of tabfeed, torch and tf.data are watched by wrapping their ``__next__`` once the
script imports them, and ``__iter__`` as well, so that starting worker processes counts. Only the
main thread is watched. Loaders used inside another loader's ``__next__`` are not: a DataLoader
around a tabfeed loader is one loader. Everything is unwrapped when the script ends.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tabfeed.profile.collect.batches import EpochTimer
from tabfeed.profile.profiler import Profiler


@dataclass(frozen=True)
class _LoaderClass:
    """A loader class, the method that begins an epoch, and the class of its iterators."""

    module: str
    iterable: str
    begin: str
    iterator: str
    iterator_module: str | None = None


_LOADERS = (
    _LoaderClass("tabfeed.loader.state", "LoaderState", "iterate", "EpochIterator"),
    _LoaderClass("torch.utils.data.dataloader", "DataLoader", "__iter__", "_BaseDataLoaderIter"),
    _LoaderClass(
        "tensorflow.python.data.ops.dataset_ops",
        "DatasetV2",
        "__iter__",
        "OwnedIterator",
        "tensorflow.python.data.ops.iterator_ops",
    ),
)


@contextmanager
def watching(profiler: Profiler) -> Iterator[None]:
    """Time every epoch the main thread runs over a known loader class."""
    watcher = _Watcher(profiler)
    finder = _AfterImport(watcher)
    sys.meta_path.insert(0, finder)
    try:
        for target in _LOADERS:
            if target.module in sys.modules:
                watcher.wrap(target)
        yield
    finally:
        sys.meta_path.remove(finder)
        watcher.undo()


class _Watcher:
    """Wraps loader classes; knows which iterator belongs to which epoch."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._undo: list[Callable[[], None]] = []
        self._begun: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()
        self._epochs: weakref.WeakKeyDictionary[Any, EpochTimer] = weakref.WeakKeyDictionary()
        self._inside = False

    def wrap(self, target: _LoaderClass) -> None:
        """Wrap both methods of a loader class whose module is imported."""
        module = sys.modules[target.module]
        other = sys.modules[target.iterator_module or target.module]
        self._replace(getattr(module, target.iterable), target.begin, self._begin)
        self._replace(getattr(other, target.iterator), "__next__", self._next)

    def _replace(self, owner: type, name: str, how: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def wrapped(this: Any, *args: Any, **options: Any) -> Any:
            return how(real, this, *args, **options)

        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, real))

    def undo(self) -> None:
        """Unwrap everything."""
        while self._undo:
            self._undo.pop()()

    def _ignored(self) -> bool:
        return self._inside or threading.current_thread() is not threading.main_thread()

    def _begin(self, real: Callable[..., Any], source: Any, *args: Any, **options: Any) -> Any:
        if self._ignored():
            return real(source, *args, **options)
        start = time.perf_counter_ns()
        iterator = self._without_nested(real, source, *args, **options)
        self._begun[iterator] = (source, start)
        return iterator

    def _next(self, real: Callable[..., Any], iterator: Any) -> Any:
        if self._ignored() or _tracing():
            return real(iterator)
        watched = self._epochs.get(iterator)
        if watched is None:
            source, start = self._begun.pop(iterator, (iterator, time.perf_counter_ns()))
            watched = self._epochs[iterator] = self._profiler.start_epoch(source, start)
        else:
            watched.requested()
        try:
            batch = self._without_nested(real, iterator)
        except BaseException:
            watched.finish()
            raise
        watched.arrived(batch)
        return batch

    def _without_nested(self, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self._inside = True
        try:
            return real(*args, **options)
        finally:
            self._inside = False


def _tracing() -> bool:
    """Whether TensorFlow is only tracing a function."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and not tensorflow.executing_eagerly()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Wraps a loader class right after its module has been imported."""

    def __init__(self, watcher: _Watcher) -> None:
        self._watcher = watcher
        self._waiting = {t.module: t for t in _LOADERS if t.module not in sys.modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a module loader that calls the watcher."""
        wanted = self._waiting.pop(fullname, None)
        if wanted is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, lambda: self._watcher.wrap(wanted))
        return spec


class _CallbackLoader(importlib.abc.Loader):
    """A module loader that calls a function after loading."""

    def __init__(self, real: Any, then: Callable[[], None]) -> None:
        self._real = real
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the real loader does."""
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the real loader does; then call the function."""
        self._real.exec_module(module)
        self._then()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
