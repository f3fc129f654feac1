"""The server: federated averaging of the adapters, and the accuracy on reviews of products that no client sells."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from federated_reviews.task import held_out, make_session, model
from ortrain import lora
from ortrain.federated import GuardedGrid, initial_arrays, load_arrays

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    inputs, labels = held_out(config["held-out"])
    size = sum(array.nbytes for array in model().graph.initializers.values())
    with make_session() as session:

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            load_arrays(session, arrays)
            loss, scores = session.eval_step(*inputs, labels)
            return MetricRecord({"loss": float(loss), "accuracy": float((scores.argmax(1) == labels).mean())})

        arrays = initial_arrays(session)
        sent = sum(session.state.array(name).nbytes for name in arrays)
        strategy = FedAvg(fraction_train=config["fraction"], fraction_evaluate=0.0)
        settings = ConfigRecord({name: config[name] for name in ("epochs", "batch-size", "learning-rate")})
        result = strategy.start(GuardedGrid(grid), arrays, num_rounds=config["rounds"], train_config=settings, evaluate_fn=evaluate)
        accuracy = {number: metrics["accuracy"] for number, metrics in result.evaluate_metrics_serverapp.items()}
        print(f"adapters of {sent / 1e3:.0f} kB travel, of a model of {size / 1e6:.0f} MB", flush=True)
        print(f"held-out accuracy {accuracy[0]:.1%} before, {accuracy[config['rounds']]:.1%} after {config['rounds']} rounds, "
              f"{max(labels.mean(), 1 - labels.mean()):.1%} by always giving the more frequent answer", flush=True)
        if config["out"]:
            load_arrays(session, result.arrays)
            lora.save(session, config["out"])
