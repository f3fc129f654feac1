"""Samples of Einsum; numpy.einsum is the oracle."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(51)


def sample(equation, *shapes, **options):
    return Sample("Einsum", [rng.standard_normal(shape) for shape in shapes], lambda *a: np.einsum(equation, *a), {"equation": equation}, **options)


SAMPLES = [
    sample("ij,jk->ik", (3, 4), (4, 5)), sample("ij,kj->ki", (3, 4), (5, 4)), sample("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
    sample("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), sample("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), sample("ij->ji", (3, 4)), sample("ij->i", (3, 4)),
    sample("ij,ij->", (3, 4), (3, 4)), sample("i,j->ij", (3,), (4,)), sample("ijk,kl->ijl", (2, 3, 4), (4, 5)), sample("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    sample("ij , jk", (3, 4), (4, 5)), sample("bn,anm,bm->ba", (2, 3), (4, 3, 5), (2, 5)), sample("ii->i", (4, 4), gradient=False), sample("ij,j->ij", (3, 4), (4,)),
    sample("aij,jk->ik", (2, 3, 4), (4, 5)),
]
REFUSALS = [Refusal("Einsum", [np.zeros((2, 3))], {"equation": "ij,jk->ik"}), Refusal("Einsum", [np.zeros((2, 3)), np.zeros((4, 5))], {"equation": "ij,jk->ik"}),
            Refusal("Einsum", [np.zeros((2, 3))], {"equation": "i->i"}), Refusal("Einsum", [np.zeros((2, 3))], {"equation": "ij->k"})]
