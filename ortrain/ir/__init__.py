"""The intermediate representation: models as plain objects, with values by name and nodes in order.

It is independent of file formats, operators and execution."""

from ortrain.ir.graph import Attribute, Dim, Graph, Model, Node, Shape, TensorType
from ortrain.ir.names import NameSource

__all__ = ["Attribute", "Dim", "Graph", "Model", "NameSource", "Node", "Shape", "TensorType"]
