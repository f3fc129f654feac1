"""The server: rounds of a strategy, and the accuracy of the global model on digits that no client has."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx

from federated_digits.task import held_out, make_session
from ortrain.federated import GuardedGrid, Scaffold, initial_arrays, load_arrays

STRATEGIES = {"FedAvg": FedAvg, "FedProx": FedProx, "Scaffold": Scaffold}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, (x, labels) = context.run_config, held_out()
    with make_session() as session:

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            load_arrays(session, arrays)
            loss, scores = session.eval_step(x, labels)
            return MetricRecord({"loss": float(loss), "accuracy": float((scores.argmax(1) == labels).mean())})

        further = {"proximal_mu": config["proximal-mu"]} if config["strategy"] == "FedProx" else {}
        strategy = STRATEGIES[config["strategy"]](fraction_train=config["fraction"], fraction_evaluate=config["fraction"], **further)
        settings = ConfigRecord({name: config[name] for name in ("epochs", "batch-size", "learning-rate")})
        result = strategy.start(GuardedGrid(grid), initial_arrays(session), num_rounds=config["rounds"], train_config=settings, evaluate_fn=evaluate)
        print(f"after {config['rounds']} rounds: held-out accuracy {result.evaluate_metrics_serverapp[config['rounds']]['accuracy']:.2%}", flush=True)
        if config["out"]:
            load_arrays(session, result.arrays)
            session.export(config["out"])
