"""The parts of operator records: shape inference, node builders, decompositions, attribute and type checks, the cost model."""
