"""Samples of connectionist temporal classification. The oracles sum over all alignments, one by one."""

import itertools

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(11)
FRAMES, N, CLASSES = 5, 4, 3


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


LOG_PROBS = log_softmax(rng.standard_normal((FRAMES, N, CLASSES)))
TARGETS = np.array([[1, 2], [2, 2], [1, -1], [-1, 0]])
INPUT_LENGTHS, TARGET_LENGTHS = np.array([5, 4, 3, 5]), np.array([2, 2, 1, 0])


def spelled(path, blank):
    """Return the labels that a path of classes spells: repetitions merged, then blanks removed."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def alignments(log_probs, targets, input_lengths, target_lengths, blank, batch_first):
    """Yield per sequence (its log probabilities [t, c], the paths that spell its targets and the log probability of each)."""
    for n, (frames, labels) in enumerate(zip(input_lengths, target_lengths, strict=True)):
        rows = (log_probs[n] if batch_first else log_probs[:, n])[:frames]
        paths = [p for p in itertools.product(range(rows.shape[1]), repeat=int(frames)) if spelled(p, blank) == list(targets[n][:labels])]
        yield paths, [sum(rows[t, c] for t, c in enumerate(path)) for path in paths]


def loss(log_probs, targets, input_lengths, target_lengths, blank=0, batch_first=0, zero_infinity=0):
    found = [-np.log(np.exp(scores).sum()) if paths else 0.0 if zero_infinity else np.inf
             for paths, scores in alignments(log_probs, targets, input_lengths, target_lengths, blank, batch_first)]
    return np.array(found, log_probs.dtype)


def gradient(log_probs, targets, input_lengths, target_lengths, blank=0, batch_first=0, zero_infinity=0):
    result = np.zeros_like(log_probs)
    for n, (paths, scores) in enumerate(alignments(log_probs, targets, input_lengths, target_lengths, blank, batch_first)):
        rows = result[n] if batch_first else result[:, n]
        for path, score in zip(paths, scores, strict=True):
            for t, c in enumerate(path):
                rows[t, c] -= np.exp(score - np.log(np.exp(scores).sum()))
    return result


def sample(inputs, outputs=1, **attributes):
    def oracle(*arrays):
        losses = loss(*arrays, **attributes)
        return losses if outputs == 1 else (losses, gradient(*arrays, **attributes))

    return Sample("CTCLoss", inputs, oracle, attributes, "ortrain", outputs=outputs, gradient=outputs == 1, label=f"{outputs}-{attributes}")


USUAL = [LOG_PROBS, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS]
BATCH_FIRST = [LOG_PROBS.transpose(1, 0, 2).copy(), TARGETS.astype(np.int32), *USUAL[2:]]
LAST_BLANK = [LOG_PROBS, np.where(TARGETS > 0, TARGETS - 1, TARGETS), INPUT_LENGTHS, TARGET_LENGTHS]
TOO_SHORT = [LOG_PROBS, TARGETS, np.array([1, 2, 0, 0]), TARGET_LENGTHS]
SAMPLES = [
    *[sample(USUAL, outputs) for outputs in (1, 2)],
    *[sample(BATCH_FIRST, outputs, batch_first=1) for outputs in (1, 2)],
    sample(LAST_BLANK, blank=2),
    *[sample(TOO_SHORT, outputs, zero_infinity=1) for outputs in (1, 2)],
]
REFUSALS = [
    Refusal("CTCLoss", [LOG_PROBS[0], *USUAL[1:]], domain="ortrain"),
    Refusal("CTCLoss", [LOG_PROBS, TARGETS[1:], *USUAL[2:]], domain="ortrain"),
    Refusal("CTCLoss", [LOG_PROBS, TARGETS, INPUT_LENGTHS[1:], TARGET_LENGTHS], domain="ortrain"),
    Refusal("CTCLoss", USUAL, {"blank": 3}, "ortrain"),
    Refusal("CTCLoss", USUAL, {"batch_first": 1}, "ortrain"),
]
