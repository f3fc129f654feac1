"""Models as plain objects: values by name, nodes in order. Knows no files, operators or execution."""

from ortrain.ir.graph import Attribute, Dim, Graph, Model, Node, Shape, TensorType
from ortrain.ir.names import NameSource

__all__ = ["Attribute", "Dim", "Graph", "Model", "NameSource", "Node", "Shape", "TensorType"]
