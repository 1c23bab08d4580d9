"""Reads and writes the files that ulplab exchanges with programs, in plain Python: safetensors of the types that `array` supports.

Programs with numpy or torch can use the package `safetensors` instead.

Needs: only Python 3.
"""
import array
import json

CODES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B"}


def read(path):
    """Returns the tensors by name, each a flat array, and the metadata: sizes, keys and scalars of the case, as text."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        tensors[name] = array.array(CODES[tensor["dtype"]], data[begin:end])
    return tensors, metadata


def write(path, metadata, tensors):
    """Writes the outputs that the metadata of the inputs request, from flat sequences by name."""
    header, data = {}, b""
    for output in json.loads(metadata["outputs"]):
        name, dtype = output["name"], output["dtype"]
        part = array.array(CODES[dtype], tensors[name]).tobytes()
        header[name] = {"dtype": dtype, "shape": output["shape"], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
