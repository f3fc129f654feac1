"""Recurrent layer kernels: LSTM, GRU, RNN and their gradients; implemented in recurrent.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "recurrent/recurrent.h" nogil:
    int lstm(const KernelArgs *args)
    int lstm_grad(const KernelArgs *args)
    int gru(const KernelArgs *args)
    int gru_grad(const KernelArgs *args)
    int rnn(const KernelArgs *args)
    int rnn_grad(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "lstm": (<size_t>&lstm, ("float32", "float64")),
    "lstm_grad": (<size_t>&lstm_grad, ("float32", "float64")),
    "gru": (<size_t>&gru, ("float32", "float64")),
    "gru_grad": (<size_t>&gru_grad, ("float32", "float64")),
    "rnn": (<size_t>&rnn, ("float32", "float64")),
    "rnn_grad": (<size_t>&rnn_grad, ("float32", "float64")),
}
