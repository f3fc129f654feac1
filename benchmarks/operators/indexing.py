"""Cases of operators that move elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.operators.case import Case, constant, integers

SQUARE = (1024, 1024)


def shape_cases() -> Iterator[Case]:
    """Yield transposes, joins, slices and repetitions."""
    transposes = {"matrix": (SQUARE, (1, 0)), "odd matrix": ((1049, 999), (1, 0)), "to channels-last": ((16, 64, 32, 32), (0, 2, 3, 1)),
                  "heads": ((8, 128, 8, 128), (0, 2, 1, 3)), "3 columns": ((349525, 3), (1, 0)), "7 rows": ((7, 149797), (1, 0))}
    for label, (shape, perm) in transposes.items():
        yield Case("Transpose", [shape], lambda torch, x, p=perm: x.permute(p).contiguous(), {"perm": list(perm)}, label)
    for label, parts, axis in (("rows", [(512, 1024)] * 2, 0), ("columns", [(1024, 512)] * 2, 1), ("odd columns", [(149797, 3), (149797, 4)], 1)):
        yield Case("Concat", parts, lambda torch, *x, a=axis: torch.cat(x, a), {"axis": axis}, label)
    yield Case("Slice", [SQUARE, constant(3), constant(1000), constant(1)], lambda torch, x: x[:, 3:1000].contiguous(), {}, "columns")
    yield Case("Slice", [SQUARE, constant(0), constant(1024), constant(1), constant(2)], lambda torch, x: x[:, ::2].contiguous(), {}, "every second column")
    yield Case("Split", [SQUARE], lambda torch, x: torch.split_copy(x, 512, 1)[0], {"axis": 1, "num_outputs": 2}, "columns", outputs=2)
    yield Case("Tile", [(256, 1024), constant(2, 2)], lambda torch, x: x.repeat(2, 2), {}, "2x2")
    yield Case("Expand", [(1024, 1), constant(1024, 1024)], lambda torch, x: x.expand(1024, 1024).contiguous(), {}, "a column")
    for mode, peer in {"constant": "constant", "reflect": "reflect", "edge": "replicate"}.items():
        for label, shape in {"64 channels": (16, 64, 32, 32), "3 channels": (8, 3, 224, 224)}.items():
            yield Case("Pad", [shape, constant(0, 0, 1, 1, 0, 0, 1, 1)], lambda torch, x, m=peer: torch.nn.functional.pad(x, (1, 1, 1, 1), m), {"mode": mode},
                       f"{mode}, {label}")
    yield Case("DepthToSpace", [(16, 64, 32, 32)], lambda torch, x: torch.nn.functional.pixel_shuffle(x, 2), {"blocksize": 2, "mode": "CRD"}, "2")
    yield Case("SpaceToDepth", [(16, 16, 64, 64)], lambda torch, x: torch.nn.functional.pixel_unshuffle(x, 2), {"blocksize": 2}, "2")
    yield Case("Trilu", [SQUARE], lambda torch, x: x.triu(), {}, "upper")


def gather_cases() -> Iterator[Case]:
    """Yield reads and writes at positions that other inputs name."""
    updates = [SQUARE, integers(1024, *SQUARE), SQUARE]
    yield Case("Gather", [(30000, 256), integers(30000, 4096)], lambda torch, x, i: torch.nn.functional.embedding(i, x), {}, "embedding")
    yield Case("Gather", [SQUARE, integers(1024, 1024)], lambda torch, x, i: x.index_select(1, i), {"axis": 1}, "columns")
    yield Case("GatherND", [(1024, 32, 32), integers(32, 1024, 2)], None, {}, "pairs")
    for label, axis in (("rows", 1), ("columns", 0)):
        yield Case("GatherElements", [SQUARE, integers(1024, *SQUARE)], lambda torch, x, i, a=axis: x.gather(a, i), {"axis": axis}, label)
        yield Case("ScatterElements", updates, lambda torch, x, i, u, a=axis: x.scatter_add(a, i, u), {"axis": axis, "reduction": "add"},
                   f"add, {label}")
    yield Case("ScatterElements", updates, lambda torch, x, i, u: x.scatter(1, i, u), {"axis": 1}, "rows")
    yield Case("ScatterElements", updates, lambda torch, x, i, u: x.scatter_reduce(1, i, u, "amax"), {"axis": 1, "reduction": "max"}, "max, rows", ())
    yield Case("ScatterElements", updates, lambda torch, x, i, u: x.scatter_reduce(1, i, u, "prod"), {"axis": 1, "reduction": "mul"}, "product, rows")
    rows = [(4096, 256), integers(4096, 4096, 1), (4096, 256)]
    for reduction in ("none", "add", "mul"):
        peer = (lambda torch, x, i, u: x.index_add(0, i[:, 0], u)) if reduction == "add" else None
        yield Case("ScatterND", rows, peer, {"reduction": reduction}, f"rows, {reduction}")
    yield Case("OneHot", [integers(1000, 1024), constant(1000), constant(0.0, 1.5)], lambda torch, i: torch.nn.functional.one_hot(i, 1000).float(), {},
               "1000 classes")
    yield Case("Range", [np.array(0), np.array(1 << 20), np.array(1)], None, {}, "2^20 integers")
