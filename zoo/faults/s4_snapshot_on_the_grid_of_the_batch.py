import states
import ulplab
from entry import Entry

ENTRY = Entry(
    id="S4",
    op="state_space",
    of="snapshots of a state for a prefix cache, at the last whole chunk of each request",
    fault="the chunk is one of the flattened batch, not of the request",
    symptom="states are 104 to 214 % off for requests that do not begin with a chunk; 0 for others",
    threads=("https://github.com/sgl-project/sglang/issues/31833",),
    escaped="a single request always passes",
    silent="states are not stored for a prefix cache",
)
CHUNK = 8


def inputs(rng, lengths=(13, 27, 21)):
    return [states.tokens(rng, length) for length in lengths]


def usual(rng):
    return inputs(rng, (27,))


def kernel(requests, fault):
    snapshots, begin = [], 0
    for request in requests:
        length = request["q"].shape[1]
        _, after = states.delta(**request)
        end = (begin + length) // CHUNK * CHUNK - begin if fault else length // CHUNK * CHUNK
        snapshots.append(after[:, end])
        begin += length
    return snapshots


def gate(requests, got):
    for request, state in zip(requests, got):
        prefix = states.of(request, end=request["q"].shape[1] // CHUNK * CHUNK)
        ulplab.assert_close(state, op="gated_delta", inputs=prefix, output="state")
