"""A program that stays alive between cases: `serve(compute)` answers ulplab's requests until stdin ends.

A `[[command]]` with `mode = "serve"` is started once. Each line on its stdin is a request, {"inputs": PATH, "outputs": PATH};
each line on its stdout is the answer, {"ok": true} or {"error": "what went wrong"}. Other output on stdout would mix with the
answers, so stdout is reserved for answers, and all other output goes to stderr.

Needs: only Python 3.
"""
import json
import os
import sys
import traceback


def serve(compute):
    """Calls `compute(inputs, outputs)` with the two paths of every request."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # Output of libraries, including C code, goes to stderr.
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
