"""Models as plain objects: named values and ordered nodes, independent of files, operators and execution."""

from ortrain.ir.graph import Attribute, Dim, Graph, Model, Node, Shape, TensorType
from ortrain.ir.names import NameSource

__all__ = ["Attribute", "Dim", "Graph", "Model", "NameSource", "Node", "Shape", "TensorType"]
