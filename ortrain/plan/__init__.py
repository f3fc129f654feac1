"""From a graph and the shapes of its inputs to a program: everything that can be known before computing is settled here, once."""

from ortrain.plan.data_dependence import NeedsPartition, NeedsValues
from ortrain.plan.planner import Planner, plan_program

__all__ = ["NeedsPartition", "NeedsValues", "Planner", "plan_program"]
