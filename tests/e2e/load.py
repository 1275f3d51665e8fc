"""A small load: sessions that prefill once and then decode, step by step, until they are told to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import longshore

SHAPE = longshore.ModelShape(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=64)
# Longer than sink and window, so that stages have a choice; as much more for each further session.
PROMPT = 2000


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k and v of SHAPE: [count, heads, 64] f32, Gaussian, the same for the same seed."""
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal((count, heads, 64), dtype=np.float32) for heads in (4, 2, 2))


@contextmanager
def load(target: str, names: tuple[str, ...] = ("load",)) -> Iterator[None]:
    """One session for each name, in a thread of its own. What fails there is raised at the end."""
    stop = threading.Event()
    begun = threading.Barrier(len(names) + 1)
    failures: list[BaseException] = []

    def run(name: str, seed: int) -> None:
        try:
            with longshore.connect(target) as client:
                with client.open_session(
                    SHAPE, max_tokens=10_000 * (seed + 1), name=name, dense_below_tokens=0
                ) as session:
                    for layer in range(SHAPE.num_layers):
                        session.prefill(layer, *rows(PROMPT * (seed + 1), seed))
                    begun.wait(60)
                    while not stop.wait(0.01):
                        for layer in range(SHAPE.num_layers):
                            session.decode(layer, *rows(1, seed))
        except BaseException as error:  # noqa: BLE001: raised below, in the test's own thread
            failures.append(error)
            begun.abort()

    threads = [threading.Thread(target=run, args=(name, seed)) for seed, name in enumerate(names)]
    for thread in threads:
        thread.start()
    try:
        begun.wait(60)
        yield
    except threading.BrokenBarrierError:
        pass  # its cause is in failures
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    if failures:
        raise failures[0]
