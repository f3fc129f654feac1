"""Stand-ins for objects of torch, Keras and Hugging Face datasets: what ortrain.data knows them by, and nothing else."""

import numpy as np


class Tensor:
    """A torch tensor that requires gradients, so that NumPy may not read it before it is detached."""

    def __init__(self, values, requires_grad=True, dtype=None):
        self.values, self.requires_grad = np.asarray(values), requires_grad
        self.dtype = dtype or f"torch.{self.values.dtype}"

    def detach(self):
        return Tensor(self.values, requires_grad=False, dtype=self.dtype)

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values.astype(np.float32), requires_grad=self.requires_grad)

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if "bfloat16" in self.dtype:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return Tensor(self.values[index], self.requires_grad)

    def __array__(self, dtype=None, copy=None):
        return self.numpy()


class Dataset:
    """A torch Dataset: samples by number. `read`: the numbers in the order in which they were asked for."""

    def __init__(self, x, y, wrap=tuple):
        self.x, self.y, self.wrap, self.read = x, y, wrap, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        if not isinstance(number, int):
            raise TypeError(f"expected an int, got {type(number)}")
        self.read.append(number)
        return self.wrap((self.x[number], self.y[number]))


class Loader:
    """A torch DataLoader: can be iterated again, has a length, and no __getitem__."""

    def __init__(self, x, y, size):
        self.x, self.y, self.size, self.epochs = x, y, size, 0

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __iter__(self):
        self.epochs += 1
        for start in range(0, len(self.x), self.size):
            yield [Tensor(self.x[start : start + self.size]), Tensor(self.y[start : start + self.size], requires_grad=False)]


class UnsizedLoader:
    """A torch DataLoader over an IterableDataset: asking for its length fails."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        raise TypeError("object of type 'Stream' has no len()")

    def __iter__(self):
        return iter(self.batches)


class PyDataset:
    """A Keras PyDataset: batches by number."""

    def __init__(self, x, y, size):
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return -(-len(self.x) // self.size)

    def __getitem__(self, number):
        if number >= len(self):
            raise IndexError
        part = slice(number * self.size, (number + 1) * self.size)
        return self.x[part], self.y[part]

    def on_epoch_end(self):
        pass


class HuggingFace:
    """A dataset of the package datasets, whose set_format changes it in place."""

    def __init__(self, columns, as_arrays=False):
        self.columns, self.as_arrays = columns, as_arrays

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows):
        if isinstance(rows, str):
            return self.columns[rows]
        numbers = range(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        found = {name: [values[number] for number in numbers] for name, values in self.columns.items()}
        return {name: np.array(values) for name, values in found.items()} if self.as_arrays else found

    def set_format(self, *_, **__):
        raise AssertionError("expected the caller's dataset to be left as it is")

    def with_format(self, kind, columns):
        assert kind == "numpy"
        return HuggingFace({name: self.columns[name] for name in columns}, as_arrays=True)


class HuggingFaceIterable:
    """An IterableDataset of the package datasets: no rows by number, batches through iter(batch_size)."""

    def __init__(self, columns):
        self.columns = columns

    @property
    def column_names(self):
        return list(self.columns)

    def __iter__(self):
        raise AssertionError("expected batches, not single rows")

    def iter(self, batch_size):
        count = len(next(iter(self.columns.values())))
        for start in range(0, count, batch_size):
            yield {name: list(values[start : start + batch_size]) for name, values in self.columns.items()}
