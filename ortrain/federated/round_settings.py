"""What a server sends for a round besides the arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortrain.runtime.numbers import check_count, check_learning_rate, check_number

CONTROL_VARIATE, ACKNOWLEDGED_CONTROL_VARIATE = "control-variate", "acknowledged-control-variate"


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """The entries of a ConfigRecord that clients follow; they leave others to other readers.

    epochs, batch_size, learning_rate: "epochs", "batch-size" and "learning-rate", which a program gives to strategy.start(train_config=...). proximal_mu,
    server_round: "proximal-mu", which FedProx sends, and "server-round", which all strategies of Flower send. control_variate, acknowledged_control_variate:
    what Scaffold sends: the number of the client's next control variate, 0 with other strategies, and of that which the server has from it, 0 for none."""

    epochs: int
    batch_size: int | None
    learning_rate: float | None
    proximal_mu: float
    server_round: int
    control_variate: int
    acknowledged_control_variate: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> RoundSettings:
        """Return checked settings. Raises InvalidArgumentError for a value out of range, ArgumentTypeError or ParameterTypeError for one of another type."""
        batch_size, learning_rate = config.get("batch-size"), config.get("learning-rate")
        return cls(epochs=check_count(config.get("epochs", 1), "epochs", 1),
                   batch_size=None if batch_size is None else check_count(batch_size, "batch-size", 1),
                   learning_rate=None if learning_rate is None else check_learning_rate(learning_rate),
                   proximal_mu=check_number(config.get("proximal-mu", 0.0), "proximal-mu"),
                   server_round=check_count(config.get("server-round", 0), "server-round"),
                   control_variate=check_count(config.get(CONTROL_VARIATE, 0), CONTROL_VARIATE),
                   acknowledged_control_variate=check_count(config.get(ACKNOWLEDGED_CONTROL_VARIATE, 0), ACKNOWLEDGED_CONTROL_VARIATE))
