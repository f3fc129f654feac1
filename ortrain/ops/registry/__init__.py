"""What operators are made of: records, shape inference, node builders, decompositions and the cost model."""
