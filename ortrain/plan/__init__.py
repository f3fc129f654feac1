"""Planning: turns a graph and the types of its inputs into a program. All decisions that need no data are made here,
once per program."""

from ortrain.plan.data_dependence import InputValuesRequired, PartitionRequired
from ortrain.plan.planner import Planner, plan_program

__all__ = ["InputValuesRequired", "PartitionRequired", "Planner", "plan_program"]
