"""Samples of GhostNorm: few and many positions, whose norms are computed differently, one position, and groups."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(131)


def norms(left, right, positions_last=0, blocks=1):
    products = np.einsum("npt,nqt->npq" if positions_last else "ntp,ntq->npq", left, right)
    return (products**2).sum((1, 2)).reshape(-1, blocks).sum(1)


def ghost_norm(left, right, **attributes):
    return Sample("GhostNorm", [rng.standard_normal(left), rng.standard_normal(right)], lambda a, b: norms(a, b, **attributes), attributes, domain="ortrain",
                  gradient=False)


SAMPLES = [
    ghost_norm((3, 1, 4), (3, 1, 5)), ghost_norm((3, 2, 8), (3, 2, 9)), ghost_norm((3, 20, 4), (3, 20, 5)), ghost_norm((3, 4, 1), (3, 5, 1), positions_last=1),
    ghost_norm((3, 8, 2), (3, 9, 2), positions_last=1), ghost_norm((3, 4, 20), (3, 5, 20), positions_last=1),
    ghost_norm((6, 4, 20), (6, 5, 20), positions_last=1, blocks=2), ghost_norm((6, 2, 8), (6, 2, 9), blocks=3),
]
REFUSALS = [Refusal("GhostNorm", [np.zeros((2, 3)), np.zeros((2, 4))], domain="ortrain")]
