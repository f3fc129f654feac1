"""Training by several processes: what they need of a transport, and how they act together. `ortrain.Trainer` takes a strategy.

ortrain brings no transport of its own: `MPI` uses mpi4py, `Ray` uses Ray's actors and object store, and `Strategy` is the protocol of others."""

from ortrain.distributed.compression import BFloat16Synchronization, TopKSynchronization
from ortrain.distributed.mpi import MPI
from ortrain.distributed.overlap import OverlappedSynchronization
from ortrain.distributed.ray import Ray
from ortrain.distributed.sharding import OptimizerSharding
from ortrain.distributed.strategy import GatheringStrategy, Launcher, ShardingStrategy, SingleProcess, Strategy
from ortrain.distributed.synchronization import DiLoCo, LocalSGD, Synchronization

__all__ = ["MPI", "BFloat16Synchronization", "DiLoCo", "GatheringStrategy", "Launcher", "LocalSGD", "OptimizerSharding",
           "OverlappedSynchronization", "Ray", "ShardingStrategy", "SingleProcess", "Strategy", "Synchronization", "TopKSynchronization"]
