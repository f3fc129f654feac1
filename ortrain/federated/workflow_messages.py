"""Messages of Flower's workflows (flwr.server.workflow), secure aggregation among them: their arrays have positions instead of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ortrain.federated.flower import NUMBER_OF_EXAMPLES, flower

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, MetricRecord, RecordDict

TRAIN, EVALUATE = "fitins.parameters", "evaluateins.parameters"
CONFIGS = {TRAIN: "fitins.config", EVALUATE: "evaluateins.config"}
"""The record of arrays of a workflow's message -> its ConfigRecord. Other ConfigRecords are those of the workflow's mods."""


def workflow_content(key: str, records: Mapping[str, Any]) -> RecordDict:
    """Return the records of a reply in the form that a workflow reads: arrays without names, examples and metrics in records of their own.

    key: the record of arrays of the message. records: the arrays under `key`, if the message asked for training, and "metrics"."""
    common, compat = flower("flwr.common"), flower("flwr.compat.common.recorddict_compat")
    metrics: MetricRecord = records["metrics"]
    figures = {name: value for name, value in metrics.items() if name != NUMBER_OF_EXAMPLES}
    status, examples = common.Status(common.Code.OK, ""), metrics[NUMBER_OF_EXAMPLES]
    content: RecordDict
    if key == TRAIN:
        arrays: ArrayRecord = records[key]
        parameters = common.Parameters(tensors=[array.data for array in arrays.values()], tensor_type="numpy.ndarray")
        content = compat.fitres_to_recorddict(common.FitRes(status, parameters, examples, figures), keep_input=True)
    else:
        content = compat.evaluateres_to_recorddict(common.EvaluateRes(status, figures.pop("loss"), examples, figures))
    return content
