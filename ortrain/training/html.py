"""The HTML representation of a training session, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ortrain.artifacts.generation import LOSS
from ortrain.ir import Graph
from ortrain.ir.html import count_text, details, shape_text, signature, table
from ortrain.onnxblock.building import GENERATED

if TYPE_CHECKING:
    from ortrain.training.session import TrainingSession


def session_html(session: TrainingSession) -> str:
    """Return the state of a TrainingSession: inputs, outputs, parameters, optimizer and learning rate. Closed sessions and nominal states are shown too."""
    state, graph = session.state, session.training_model.graph
    rows, trained = [], 0
    for name in state.names():
        array = state.trainable[name] if name in state.trainable else state.frozen[name]
        role = "frozen" if name in state.frozen else "frozen for now" if name in state.masked else "trained"
        trained += array.size if role == "trained" else 0
        rows.append([name, "string" if array.dtype == object else array.dtype.name, shape_text(array.shape), f"{array.size:,}", role])
    optimizer = "none"
    if session.optimizer_model is not None:
        nodes = ", ".join(dict.fromkeys(node.op_type for node in session.optimizer_model.graph.nodes))
        optimizer = f"{nodes}, learning rate {session.learning_rate:.3g}, {count_text(state.optimizer_step, 'completed step')}"
    nominal = " (nominal: no values)" if state.nominal else ""
    facts = [["parameters", f"{trained:,} numbers in training, in {count_text(len(rows), 'tensor')} in all{nominal}"], ["optimizer", optimizer],
             ["eval model", "none" if session.eval_model is None else "present"]]
    loss, *others = session.output_names()
    shown = LOSS if loss.startswith(GENERATED) and LOSS not in others else loss
    own = Graph(graph.name, session.input_names(), [shown, *others], types=graph.types | ({shown: graph.types[loss]} if loss in graph.types else {}))
    return (f"<div><b>{escape(type(session).__name__)}</b>{table(['', ''], facts)}{signature(own)}"
            f"{details('parameters', ['name', 'dtype', 'shape', 'numbers', 'role'], rows)}</div>")
