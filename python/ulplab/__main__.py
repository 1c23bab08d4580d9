"""The program `ulplab`: `python -m ulplab`, and the script that pip installs."""

import os
import signal
import sys

from ulplab import _native


def main() -> int:
    """Runs the program with the words of the command line, and returns its exit code."""
    # As an executable finds them: what is closed would be the number of the next file that is opened, and Python takes signals
    # that it never looks at here.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    words = sys.argv[1:]
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(words)]
    return _native.main([sys.executable or sys.orig_argv[0], *before], words, _native.__file__)


if __name__ == "__main__":
    sys.exit(main())
