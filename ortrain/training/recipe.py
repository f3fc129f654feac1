"""Recipes: the algorithm and the hyperparameters that an optimizer model specifies."""

from __future__ import annotations

from dataclasses import dataclass

from ortrain.errors import InvalidModelError, MissingKernelError
from ortrain.ir import Model, Node
from ortrain.ops.registry.optimizers import ADAMW, ALGORITHMS, GRADIENTS, Moment, OptimizerAlgorithm
from ortrain.ops.registry.record import canonical_domain


@dataclass(frozen=True, slots=True)
class OptimizerRecipe:
    """The algorithm and the hyperparameters that an optimizer model specifies."""

    algorithm: OptimizerAlgorithm
    floats: tuple[float, ...] = ()
    """Hyperparameters in the order of the algorithm's kernel."""
    ints: tuple[int, ...] = ()
    max_norms: tuple[float, ...] = ()
    """Limits of the gradients' common norm, applied one after another before the update."""

    @property
    def attributes(self) -> dict[str, float | int]:
        """All hyperparameters by name."""
        return dict(zip(self.algorithm.floats, self.floats, strict=True)) | dict(zip(self.algorithm.ints, self.ints, strict=True))

    @property
    def moments(self) -> tuple[Moment | None, ...]:
        """The moments of the algorithm, None in place of those that the hyperparameters leave out."""
        return self.algorithm.present_moments(self.attributes)


def algorithm_of(node: Node) -> OptimizerAlgorithm | None:
    """Return the algorithm of an optimizer model's node; None for another node."""
    algorithm = ALGORITHMS.get(node.op_type)
    return algorithm if algorithm is not None and canonical_domain(node.domain) == algorithm.domain else None


def read_recipe(model: Model) -> OptimizerRecipe:
    """Read the recipe from an optimizer model. Raises InvalidModelError when it is not an optimizer model, MissingKernelError for nodes ortrain cannot
    run there."""
    updates = [(node, algorithm) for node in model.graph.nodes if (algorithm := algorithm_of(node)) is not None]
    if len(updates) != 1:
        raise InvalidModelError(f"Only support one type of optimizer algorithm, but got: {len(updates)}")
    update, algorithm = updates[0]
    attributes = update.attributes
    if model.graph.inputs != algorithm.inputs(attributes):
        raise InvalidModelError(f"Invalid graph inputs. Expected: {algorithm.inputs(attributes)} Actual: {model.graph.inputs}")
    recipe = OptimizerRecipe(algorithm, algorithm.float_values(attributes), algorithm.int_values(attributes), _clip_norms(model, update, algorithm))
    if algorithm is ADAMW and recipe.ints == (0, 0):
        raise InvalidModelError("The correct_bias should be 1 for adam_mode = 0.")
    return recipe


def _clip_norms(model: Model, update: Node, algorithm: OptimizerAlgorithm) -> tuple[float, ...]:
    """Return max_norm of every InplaceClipGradNorm between the gradients and the update, in order."""
    producers, norms = model.graph.producers(), []
    name = update.inputs[algorithm.node_inputs(update.attributes).index(GRADIENTS)]
    while name != GRADIENTS:
        node = producers.get(name)
        if node is None or node.op_type != "InplaceClipGradNorm":
            break
        norms.append(float(node.attributes.get("max_norm", 1.0)))
        name = node.inputs[0]
    if name != GRADIENTS or len(model.graph.nodes) != len(norms) + 1:
        raise MissingKernelError("expected an optimizer model of one update whose gradients come straight or through InplaceClipGradNorm, got nodes "
                                 f"{[node.op_type for node in model.graph.nodes]}")
    return tuple(reversed(norms))
