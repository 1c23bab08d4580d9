"""Turns on a card that several processes use, on the file that `ulplab` locks for them.

Whoever has the card works on it alone: who prepares a peer, calls it for the first time, or times it. Compilation needs no card, and takes
most of the time: meanwhile others have their turns.
"""
import concurrent.futures
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


#: How many of the kernels that are chosen among are compiled at a time: most of a compilation runs outside of Python.
COMPILED_AT_A_TIME = 4


def compile_choices(tuner, args, keys):
    """Compiles all kernels that an autotuner of Triton's chooses among. One that fails fails again where it is tried."""
    keys = {name: value for name, value in keys.items() if name != "warmup"}
    tuner.nargs = dict(zip(tuner.arg_names, args))
    choices = tuner.prune_configs(keys)

    def compile_one(config):
        with contextlib.suppress(Exception):
            tuner.fn.warmup(*args, **keys, **config.all_kwargs())

    with concurrent.futures.ThreadPoolExecutor(COMPILED_AT_A_TIME) as pool:
        list(pool.map(compile_one, choices))


@contextlib.contextmanager
def first_call(triton):
    """A turn for the first call of a peer. Triton's kernels are compiled away from the card; they are chosen among, by their times, alone."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(TURNS.lent())
        if triton is not None:
            kernels, tuners, seen = triton.JITFunction, triton.runtime.Autotuner, set()
            compile_one, choose = kernels._do_compile, tuners.run

            def away(*args, **keys):
                with TURNS.away():
                    return compile_one(*args, **keys)

            def compile_then_choose(tuner, *args, **keys):
                if len(tuner.configs) > 1 and id(tuner) not in seen:
                    seen.add(id(tuner))
                    kernels._do_compile = compile_one
                    with TURNS.away():
                        compile_choices(tuner, args, keys)
                    kernels._do_compile = away
                return choose(tuner, *args, **keys)

            kernels._do_compile, tuners.run = away, compile_then_choose
            stack.callback(setattr, kernels, "_do_compile", compile_one)
            stack.callback(setattr, tuners, "run", choose)
        yield
