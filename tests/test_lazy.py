"""Properties that are computed once, and wait for no other instance."""

from __future__ import annotations

import ast
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tabfeed.lazy import cached_property

SRC = Path(__file__).parents[1] / "src" / "tabfeed"


@dataclass(frozen=True)
class Chain:
    """As a dataset made of another one: a thread computes the property of the one below."""

    below: Chain | None = None

    @cached_property
    def length(self) -> int:
        """How many there are."""
        if self.below is None:
            return 1
        below = self.below
        with ThreadPoolExecutor(1) as pool:
            return 1 + pool.submit(lambda: below.length).result()


def test_an_instance_does_not_wait_for_another() -> None:
    assert Chain(Chain(Chain())).length == 3


def test_a_value_is_kept_and_pickled() -> None:
    chain = Chain(Chain())
    assert "length" not in vars(chain)
    assert chain.length == 2
    assert vars(pickle.loads(pickle.dumps(chain)))["length"] == 2
    assert "How many" in (Chain.length.__doc__ or "")


def test_threads_that_compute_at_once_get_one_value() -> None:
    both = threading.Barrier(2, timeout=60)

    class Slow:
        @cached_property
        def value(self) -> object:
            """Computed by both threads."""
            both.wait()
            return object()

    slow = Slow()
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(lambda: slow.value) for _ in range(2))
        assert first.result() is second.result() is slow.value


def test_only_what_starts_something_has_a_lock() -> None:
    """On a GPU such properties start processes or reserve memory, which must happen once."""
    users = []
    for path in SRC.rglob("*.py"):
        imports = (
            n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)
        )
        if any(
            i.module == "functools" and "cached_property" in {a.name for a in i.names}
            for i in imports
        ):
            users.append(path.relative_to(SRC).as_posix())
    assert [u for u in users if not u.startswith("loader/gpu/")] == []
