"""Long calls that Ctrl-C ends.

Python runs signal handlers on its main thread, and only while that thread runs Python code. A thread inside the library
does not, and an exception that a handler raises inside a callback from C is printed and lost. So a long call is made on
a thread of its own, and the calling thread waits in Python, where handlers do run. The library asks now and then, by
its progress callback, whether to go on; the answer is a flag that the waiting thread sets. The waiting thread also
calls the user's progress function, which may therefore raise.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

from . import _c

__all__ = ["Progress", "run"]

Progress = Callable[[int, int], Any]

# Seconds between two looks at how far the work is.
_INTERVAL = 0.05

# Seconds that a thread may take to start on a busy machine.
_START = 2.0

# Work (route-steps of retrieval) that takes a few hundredths of a second, too short to be interrupted.
_SHORT = 1 << 20


def run(work: Callable[[Any], None], total: int, progress: Optional[Progress] = None) -> None:
    """Do ``work(callback)``, where ``callback`` is the ``rosa_progress`` to give to the library.

    ``progress(done, total)`` is called now and then, and once more at the end. An exception that it or a signal handler
    raises stops the work and is raised here. Without ``progress``, short work and work that is not on the main thread,
    where no handler runs, is done at once.
    """
    if progress is None and (total < _SHORT or threading.current_thread() is not threading.main_thread()):
        work(_c.rosa_progress())
        return
    done = 0
    stop = False
    failure: Optional[BaseException] = None
    finished = threading.Event()

    def report(_context: Any, now: int, _total: int) -> int:
        nonlocal done
        done = now
        return stop

    callback = _c.rosa_progress(report)

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
        # After an exception above the thread must end before this returns, as it writes to the caller's arrays. A
        # thread without an identity has not started: it may never, or do so in a moment, and then sees `stop`. A signal
        # that comes during this wait is raised when the thread has ended.
        stop = True
        late: Optional[BaseException] = None
        if worker.ident is None:
            finished.wait(_START)
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
            failure = None  # its traceback refers to this frame: the cycle would keep the arrays alive
    if progress is not None:
        progress(total, total)
