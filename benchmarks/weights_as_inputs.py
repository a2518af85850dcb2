"""A model file that onnx-tool can count, of one that comes without its weights.

onnx-tool loads all weights of a model, and so refuses a file whose weights lie elsewhere and are not there. It counts a model
whose weights are inputs: such files it writes itself when asked for shapes only. It also fails where ``Shape`` takes a part of
the shape by its attributes ``start`` and ``end`` (opset 15), which it does not read; of a graph input, the copy says the same by
``Gather``.
"""

from __future__ import annotations

import onnx


def weights_as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose external initialisers are inputs of the same name, type and shape, without ``start`` and ``end`` of Shape."""
    graph = onnx.GraphProto()
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}
    for node in model.graph.node:
        part = {attribute.name: attribute.i for attribute in node.attribute} if node.op_type == "Shape" else {}
        if not part or node.input[0] not in ranks:
            graph.node.append(node)
            continue
        whole, which = f"{node.output[0]}.whole", f"{node.output[0]}.which"
        places = range(ranks[node.input[0]])[part.get("start", 0) : part.get("end")]
        graph.initializer.append(onnx.helper.make_tensor(which, onnx.TensorProto.INT64, [len(places)], list(places)))
        graph.node.append(onnx.helper.make_node("Shape", [node.input[0]], [whole]))
        graph.node.append(onnx.helper.make_node("Gather", [whole, which], [node.output[0]], axis=0))
    graph.name = model.graph.name
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        else:
            graph.initializer.append(tensor)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.CopyFrom(graph)
    return copy
