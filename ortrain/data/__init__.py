"""Data for training: batches from arrays, files, tables, images, datasets of other libraries, and iterables of batches.

`as_loader` accepts
- one array, a sequence or a mapping of arrays: NumPy arrays, memory maps, torch tensors, anything with __array__ or __dlpack__, numbers in nested lists;
- paths: .npz, .npy (memory-mapped), .csv, .parquet (read a row group at a time), a folder with one subfolder of images per class;
- pandas frames, pyarrow tables, record batches, RecordBatchReaders and Datasets, Hugging Face datasets;
- objects with __len__ and __getitem__(number) -> sample, such as a torch Dataset;
- iterables of batches that can be iterated again, such as a torch DataLoader, and, with steps_per_epoch, iterators that cannot;
- `ortrain.data.images.ImageFolder` and `ortrain.data.tables.Table`.

Conversion. Every input of a session has a dtype, and a batch is converted to it as follows.

| input | accepts | refuses |
|---|---|---|
| float | floats of any width, integers, booleans | NaN and infinity, also those that appear because a float is too large for the input's width |
| integer | integers and booleans in range, floats that are whole numbers in range | fractions, NaN, numbers out of range |
| bool | booleans, and numbers that are 0 or 1 | other numbers |
| string | text | everything else |

Complex numbers, dates and, but for string inputs, text are refused. Errors name the input, the sample and the position in it. Arrays in memory are checked
once, when the loader is made; all other data batch by batch. check_finite=False turns the check for NaN and infinity off.

Order. Arrays and other samples with numbers are shuffled by np.random.default_rng([seed, epoch]).permutation(samples). Row groups are shuffled by the same
generator, and their rows within windows of up to 65536 rows or 32 MiB. Iterables keep their order, and the batch size, if they yield batches.

Threads. A thread prepares batches ahead (prefetch) from when on preparing one takes more than 0.2 ms on average; below that, handing batches from thread to
thread costs more than it saves. Arrays in memory with batches of up to 4 MiB never use one.

Workers. `DataLoader.shard` divides each batch among processes that train together, in the order that a single process with larger batches has."""

from ortrain.data.augmentation import Augment
from ortrain.data.loader import DataLoader, as_loader
from ortrain.data.splitting import split

__all__ = ["Augment", "DataLoader", "as_loader", "split"]
