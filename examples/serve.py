"""A program that stays alive between cases: `serve(compute)` answers ulplab until it has no more to ask.

A `[[command]]` with `mode = "serve"` is started once. Each line on its stdin is a request, {"inputs": PATH, "outputs": PATH};
each line on its stdout is the answer, {"ok": true} or {"error": "what went wrong"}. Whatever else prints would get in
between, so stdout is kept for answers alone, and all other output goes to stderr.

Needs: nothing but Python 3.
"""
import json
import os
import sys
import traceback


def serve(compute):
    """Calls `compute(inputs, outputs)` with the two paths of every request."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # Prints of libraries, of C code too, go where stderr goes.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            compute(request["inputs"], request["outputs"])
            answer = {"ok": True}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
