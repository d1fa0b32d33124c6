"""Long calls that Ctrl-C ends.

Python runs signal handlers on its main thread and only while that thread runs Python. A thread inside the library does
not, and an exception that a handler raises inside a callback from C is printed and lost. So a long call is made on a
thread of its own, where no handler ever runs, and the calling thread waits in Python, where they do. The library asks
between two routes whether to go on; what it is told is a flag that the waiting thread sets. Progress is shown by the
waiting thread too: a progress function is so called where its author expects it, and may raise.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

from . import _c

__all__ = ["Progress", "run"]

Progress = Callable[[int, int], Any]

# Seconds between two looks at how far the work is.
_INTERVAL = 0.05


def run(work: Callable[[Any], None], total: int, progress: Optional[Progress]) -> None:
    """Do ``work(callback)``, where ``callback`` is the ``rosa_progress`` to give to the library.

    ``progress(done, total)`` is called now and then, and once more at the end. What it or a signal handler raises stops
    the work and comes out of here.
    """
    done = 0
    stop = False
    failure: Optional[BaseException] = None
    finished = threading.Event()

    def between_routes(_context: Any, now: int, _total: int) -> int:
        nonlocal done
        done = now
        return stop

    callback = _c.rosa_progress(between_routes)

    def body() -> None:
        nonlocal failure
        try:
            if not stop:
                work(callback)
        except BaseException as error:
            failure = error
        finally:
            finished.set()

    worker = threading.Thread(target=body, name="rosatune")
    shown = -1
    try:
        worker.start()
        while not finished.wait(_INTERVAL):
            if progress is not None and done != shown:
                shown = done
                progress(shown, total)
    finally:
        # After an exception above; an idle word otherwise. Nothing may be left behind that still writes to the caller's
        # arrays: a thread that has an identity is waited for, one that has not will find that it has nothing to do. A
        # signal may come while this waits, too; it is raised when the thread has ended.
        stop = True
        late: Optional[BaseException] = None
        while worker.ident is not None:
            try:
                finished.wait()
                worker.join()
                break
            except BaseException as error:
                late = error
        if late is not None:
            raise late
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # its traceback holds this frame: the two would keep each other alive, arrays and all
    if progress is not None:
        progress(total, total)
