"""Turns on a card that several processes use, on the file that `ulplab` locks for them.

Whoever has the card works on it alone: who prepares a peer, calls it for the first time, or times it. Compilation needs no card, and takes
most of the time: meanwhile others have their turns.
"""
import contextlib
import fcntl
import os


class Turns:
    """A process's turns; before `open`, nobody waits for anybody."""

    def __init__(self):
        self.file = None
        self.settle = lambda: None
        self.depth = 0
        self.lends = False

    def open(self, card, settle):
        """Turns on a card, named by the digits of its UUID. `settle` waits until the card has done this process's work."""
        folder = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
        self.file = open(os.path.join(folder, f"ulplab-{card}.work.lock"), "a")
        self.settle = settle

    def _take(self):
        if self.file:
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def _end(self):
        if self.file:
            try:
                self.settle()
            finally:
                fcntl.flock(self.file, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def alone(self):
        """Nobody else uses the card; a turn within another is part of it."""
        if self.depth == 0:
            self._take()
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self._end()

    @contextlib.contextmanager
    def lent(self):
        """A turn that is lent to others where `away` says so."""
        with self.alone():
            self.lends = True
            try:
                yield
            finally:
                self.lends = False

    @contextlib.contextmanager
    def away(self):
        """What needs no card: others have it meanwhile, if this turn is lent. A turn in which times are taken is never."""
        if not (self.depth and self.lends):
            yield
            return
        depth, self.depth = self.depth, 0
        self._end()
        try:
            yield
        finally:
            self._take()
            self.depth = depth


#: Those of this process.
TURNS = Turns()


@contextlib.contextmanager
def first_call(triton):
    """A turn for the first call of a peer. Triton's kernels are compiled away from the card; they are chosen among, by their times, alone."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(TURNS.lent())
        if triton is not None:
            compile_one = triton.JITFunction._do_compile

            def away(*args, **keys):
                with TURNS.away():
                    return compile_one(*args, **keys)

            triton.JITFunction._do_compile = away
            stack.callback(setattr, triton.JITFunction, "_do_compile", compile_one)
        yield
