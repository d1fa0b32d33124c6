"""An adapter with random weights for a GGUF model, to measure with: time and memory do not depend on the weights."""

import json
import os
import random

import common


def numbers(source, count, kind):
    """`count` numbers of random sign and a size of 1/32 to 1/16, as the bytes of float32 or bfloat16."""
    size = 4 if kind == "F32" else 2
    keep, base = ("ff7f0080", "0000003d") if kind == "F32" else ("7f80", "003d")  # little-endian
    bits = int.from_bytes(source.randbytes(count * size), "little")
    mask = int.from_bytes(bytes.fromhex(keep) * count, "little")
    bits = bits & mask | int.from_bytes(bytes.fromhex(base) * count, "little")
    return bits.to_bytes(count * size, "little")


def tensors_of(layer, width, links, gain, gate):
    """Names and shapes of a layer whose source is `tokens`."""
    rows = [links, width] if links > 1 else [width]
    shapes = {"v_proj.weight": [width, width], "out_proj.weight": [width, width], "e0": rows, "e1": rows}
    if gain:
        shapes["gain"] = [links, 10]
    if gate:
        shapes.update({"gate.weight": [width], "gate.bias": [1]})
    return {f"layers.{layer}.{name}": shape for name, shape in shapes.items()}


def describe(program, model):
    """Architecture, width and layers of a model."""
    info = json.loads(common.call(program, "info", model, "--json"))
    return info["architecture"], info["width"], info["layers"]


def save(folder, shape, window, sinks=4, chain=4, kind="F32"):
    """Write it: source tokens, delay of the window, in every layer."""
    architecture, width, layers = shape
    source, header, data, offset = random.Random(1), {"__metadata__": {"format": "pt", "tensors": "random"}}, [], 0
    for layer in range(layers):
        for name, dims in tensors_of(layer, width, chain, True, True).items():
            count = dims[0] * (dims[1] if len(dims) > 1 else 1)
            data.append(numbers(source, count, kind))
            header[name] = {"dtype": kind, "shape": dims, "data_offsets": [offset, offset + len(data[-1])]}
            offset += len(data[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(data)
    config = {"format": 2, "rosatune_version": "0",
              "base_model": {"model_type": architecture, "hidden_size": width, "num_hidden_layers": layers},
              "options": {"layers": list(range(layers)), "bits": 16, "window": window, "sinks": sinks,
                          "source": "tokens", "delay": None, "chain": chain, "gain": True, "gate": True, "units": 0},
              "tensors": "random"}
    with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
