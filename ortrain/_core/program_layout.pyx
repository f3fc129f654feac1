"""A comparable description of programs: two of the same layout do the same."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport DTYPE_INT64, ORTRAIN_MAX_RANK, KernelArgs, Tensor
from ortrain._core.program cimport Program


cdef object tensor_layout(const Tensor *t, int64_t offset):
    return t.dtype, tuple([t.dims[i] for i in range(t.rank)]), t.count, offset


cdef object slot_layout(Program p, Py_ssize_t slot):
    """Describe the tensor of a slot; for constant shapes including their elements."""
    cdef Tensor *t = &p.slots[slot]
    cdef bint constant = p.arena_offset[slot] < 0 and t.dtype == DTYPE_INT64 and t.count <= ORTRAIN_MAX_RANK and t.data != NULL
    for i in range(p.n_input_slots):
        constant = constant and p.input_slot[i] != slot
    contents = [(<int64_t *>t.data)[i] for i in range(t.count)] if constant else []
    return tensor_layout(t, p.arena_offset[slot]), contents


def layout_of(Program p not None):
    """Describe the steps, tensors and memory of a program that has not run, without the addresses of constants and objects."""
    cdef Py_ssize_t i, j, slot
    cdef KernelArgs *a
    steps = []
    for i in range(p.n_steps):
        a = &p.args[i]
        slot = a.inputs - p.slots
        tensors = [slot_layout(p, j) for j in range(slot, slot + a.n_inputs + a.n_outputs)]
        end = p.args[i + 1].ints if i + 1 < p.n_steps else p.ints + p.n_ints
        ints = [] if i in p.python_steps else [a.ints[j] for j in range(end - a.ints)]
        steps.append((p.step_names[i], tensors, ints, p.scratch_offset[i]))
    inputs = [tensor_layout(&p.inputs[i], 0) for i in range(p.n_inputs)]
    outputs = [tensor_layout(&p.outputs[i], p.output_source[i]) for i in range(p.n_outputs)]
    floats = [p.floats[i] for i in range(p.n_floats)]
    gradient_slots = [(p.gradient_slot[i], p.gradient_offset[i]) for i in range(p.n_gradient_slots)]
    return (steps, inputs, outputs, floats, gradient_slots, p.block_extents, p.arena_bytes, p.retained_bytes, p.first_clobbering_step, p.keeps_gil)
