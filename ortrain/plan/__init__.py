"""From a graph and the shapes of its inputs to a program: everything that can be known before computing is settled here, once."""

from ortrain.plan.data_dependence import PartitionRequired, InputValuesRequired
from ortrain.plan.planner import Planner, plan_program

__all__ = ["PartitionRequired", "InputValuesRequired", "Planner", "plan_program"]
