"""More data than memory: the peak of a process that iterates over a file stays far below the file's size."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.layers import ROOT

ROWS, WIDTH = 147456, 512
SIZE = ROWS * WIDTH * 4
"""288 MiB."""
BOUND = SIZE // 2
SCRIPT = """
import sys
import numpy as np
from ortrain.data import as_loader

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:"))

path, kind, shuffle = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
if kind == "parquet":
    import pyarrow.parquet
    loader = as_loader(path, names=["x", "labels"], dtypes={"x": "float32", "labels": "int64"}, batch_size=256, shuffle=shuffle)
else:
    loader = as_loader(path, np.arange(ROWS), names=["x", "labels"], dtypes={"x": "float32", "labels": "int64"}, batch_size=256, shuffle=shuffle)
before, count, total = peak(), 0, 0
for epoch in range(2):
    for x, labels in loader.epoch(epoch):
        assert (x[:, 0] == labels % 1024).all()
        count += len(labels)
        total += int(labels.sum())
assert count == 2 * ROWS and total == ROWS * (ROWS - 1)
print(peak() - before)
""".replace("ROWS", str(ROWS))

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def growth(path, kind, shuffle):
    """Bytes by which the peak of a process grows when it iterates over two epochs."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path), kind, str(shuffle)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def rows(start, stop):
    part = np.zeros((stop - start, WIDTH), np.float32)
    part[:, 0] = np.arange(start, stop) % 1024
    return part


@needs_proc
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_memory_mapped_file_is_iterated_without_growing_to_its_size(tmp_path, shuffle):
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (ROWS, WIDTH))
    for start in range(0, ROWS, 8192):
        array[start : start + 8192] = rows(start, start + 8192)
    del array
    assert growth(tmp_path / "x.npy", "npy", shuffle) < BOUND


@needs_proc
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_parquet_file_is_iterated_without_growing_to_its_size(tmp_path, shuffle):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema([("x", pyarrow.list_(pyarrow.float32(), WIDTH)), ("labels", pyarrow.int64())])
    with ParquetWriter(tmp_path / "data.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, ROWS, 8192):
            x = pyarrow.FixedSizeListArray.from_arrays(rows(start, start + 8192).ravel(), WIDTH)
            writer.write_table(pyarrow.table([x, np.arange(start, start + 8192)], schema=schema))
    assert (tmp_path / "data.parquet").stat().st_size > 0.9 * SIZE
    assert growth(tmp_path / "data.parquet", "parquet", shuffle) < BOUND
