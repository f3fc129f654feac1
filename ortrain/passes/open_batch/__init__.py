"""Opening the batch: a model exported for a fixed number of samples becomes one for any number.

The pass walks the graph once and follows the samples from the inputs to the outputs. For every operator, a rule states along which axis the samples of
the outputs lie, provided that the operator computes each sample on its own (rules.py). Where the exporter wrote the number of samples into a constant,
such as the target of a Reshape, the rule replaces it. As a second, independent check, shape inference runs on the changed graph with a prime in place of
the number of samples: every shape must be the original one with that prime along the samples' axis. A model for which either fails is refused."""

from ortrain.passes.open_batch.opening import fixed_batch, open_batch, opened_shapes

__all__ = ["fixed_batch", "open_batch", "opened_shapes"]
