"""Federated learning with Flower: clients train one model on data that stay with them, and a server combines what they have learned.

ortrain brings clients, the arrays for the server, a guard for the replies to it and the strategy of SCAFFOLD; other strategies, transport and simulation are
Flower's (`pip install 'ortrain[flower]'`).

What travels. The arrays of a message are the trainable parameters that are not frozen and the running statistics of batch normalizations, by their names in the
model; with LoRA they are the adapters alone. `personal` names those that stay with each client instead, as in FedBN and FedPer. The optimizer's moments do not
travel, and begin at zero in every round.

What is trusted. Arrays of other names or shapes, of other dtypes than floats, and with numbers that are not finite are refused before anything changes. Floats
of another width are converted, since Flower's FedAdam answers in float64. A client that refuses a message, or whose training fails or diverges, replies with
an error that has the name and the message of ortrain's, and strategies go on with the replies of the others. `GuardedGrid` looks at replies of other clients
in the same way before a strategy averages them."""

from typing import TYPE_CHECKING, Any

from ortrain.federated.arrays import initial_arrays, load_arrays
from ortrain.federated.buffers import buffer_client_app
from ortrain.federated.client import client_app
from ortrain.federated.guard import GuardedGrid
from ortrain.federated.limited_grid import LimitedGrid
from ortrain.federated.mods import equal_weights_mod
from ortrain.federated.round_settings import RoundSettings

if TYPE_CHECKING:
    from ortrain.federated.scaffold import Scaffold

__all__ = ["GuardedGrid", "LimitedGrid", "RoundSettings", "Scaffold", "buffer_client_app", "client_app", "equal_weights_mod", "initial_arrays", "load_arrays"]


def __getattr__(name: str) -> Any:
    if name == "Scaffold":                                  # a subclass of Flower's, which importing ortrain.federated does not need
        from ortrain.federated.scaffold import Scaffold

        return Scaffold
    raise AttributeError(f"module 'ortrain.federated' has no attribute {name!r}")
